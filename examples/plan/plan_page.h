/* The page in two parts: what stands around it, and its cards. */
#ifndef EXAMPLES_PLAN_PAGE_H_
#define EXAMPLES_PLAN_PAGE_H_

#include "plan_study.h"

/* All that a section needs. */
typedef struct page {
    FILE *out;
    const host *h;
    const plan_options *o;
    const study *s;
} page;

/* Six cards: each a chart whose heading says what it shows, and the table behind it. */
void plan_cards(const page *p);

#endif
