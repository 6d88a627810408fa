#include "cli/application.h"

int main(int argc, char** argv) { return lockstep::run_command_line({argv + 1, argv + argc}); }
