/* Finding the bounds of characters in bytes that may not be UTF-8. */
#ifndef EXAMPLES_UTF8_H_
#define EXAMPLES_UTF8_H_

/* Bytes of the well-formed UTF-8 sequence at s (zero-terminated), 0 if there is none. */
int utf8_length(const unsigned char *s);

#endif
