# cmake -D file=PROGRAM -P remove_rpath.cmake: removes the folders in which a program that was not installed looks for its
# libraries.
file(RPATH_REMOVE FILE "${file}")
