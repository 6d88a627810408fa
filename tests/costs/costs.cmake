# x
set_tests_properties(net_test PROPERTIES COST 30 PROCESSORS 3)
set_tests_properties(nosuch PROPERTIES COST 30 PROCESSORS 3)
