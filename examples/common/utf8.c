#include "utf8.h"

#include <stddef.h>

int utf8_length(const unsigned char *s)
{
    static const struct {
        unsigned char first_lo, first_hi, second_lo, second_hi;
        int length;
    } forms[] = {
        {0x01, 0x7f, 0x00, 0xff, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (s[0] < forms[i].first_lo || s[0] > forms[i].first_hi)
            continue;
        if (forms[i].length > 1 && (s[1] < forms[i].second_lo || s[1] > forms[i].second_hi))
            return 0;
        for (int k = 2; k < forms[i].length; k++)
            if ((s[k] & 0xc0) != 0x80)
                return 0;
        return forms[i].length;
    }
    return 0;
}
