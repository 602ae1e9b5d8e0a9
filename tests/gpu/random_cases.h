/* Parts of a random case that other tests use. */
#ifndef RSSM_TESTS_RANDOM_CASES_H_
#define RSSM_TESTS_RANDOM_CASES_H_

#include "unit/decode_case.h"

enum { ON_GPU = 1, ON_CPU = 3 }; /* engines, as the mirror takes them */

/* Cursors somewhere in their windows, with records of sane numbers in all ring rows. */
void case_enter_windows(dc_case *c);
/* A step over random slots, with padding and forced flushes; every byte checked. */
dc_worst case_step(dc_case *c);
/* The same, but that its rows are changed between step_begin and decode. */
dc_worst case_step_of(dc_case *c, void (*change)(dc_case *c));

#endif
