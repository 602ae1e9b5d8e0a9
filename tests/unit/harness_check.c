/* A test program's main: its list of tests as a suite of Check. */
#include "harness.h"

struct h_suite {
    Suite *suite;
};

void h_add(h_suite *suite, const h_tests *tests)
{
    TCase *tcase = tcase_create(tests->name);
    tcase_set_timeout(tcase, tests->timeout ? tests->timeout : H_TIMEOUT);
    if (tests->lengthy)
        tcase_set_tags(tcase, "lengthy");
    tcase_add_loop_test(tcase, tests->test, 0, tests->count);
    suite_add_tcase(suite->suite, tcase);
}

int h_main(const char *name, void (*list)(h_suite *suite), bool load)
{
    h_suite suite = {suite_create(name)};
    if (load)
        h_api();
    list(&suite);
    return h_run(suite.suite);
}

int h_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

void h_skip(const char *why)
{
    (void)why;
}
