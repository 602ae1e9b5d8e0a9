/* Parts of the plugin that the ABI cannot reach: the checksum's own check value, and the last generation of a slot, which a
 * host would need 2^33 requests for. Linked with the inside. */
#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/slot_alloc.c" /* its struct is private */
#include "core/stream.h"

static uint64_t crc_bits(const unsigned char *at, size_t bytes)
{
    uint64_t crc = ~(uint64_t)0;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xC96C5795D7870F42u : crc >> 1;
    }
    return ~crc;
}

/* CRC-64/XZ: the catalogue's check value; every length and split equals the bit by bit form. */
START_TEST(test_crc)
{
    unsigned char bytes[67];
    ck_assert_uint_eq(rssm_crc64(0, "123456789", 9), 0x995DC9BBDF1939FAu);
    ck_assert_uint_eq(rssm_crc64(0, "", 0), 0);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)(i * 167 + 13);
    for (size_t length = 0; length <= sizeof(bytes); length++)
        for (size_t split = 0; split <= length; split++)
            ck_assert_uint_eq(rssm_crc64(rssm_crc64(0, bytes, split), bytes + split, length - split),
                              crc_bits(bytes, length));
}
END_TEST

/* A slot whose generations are used up is retired: the other one goes on, the old handles stay dead. */
START_TEST(test_last_generation)
{
    rssm_plugin p = {.mem = rssm_mem_default()};
    rssm_region region = {0};
    rssm_error err = {.struct_size = sizeof(err)};
    uint64_t first = 0, last = 0, other = 0;
    int64_t slot = -1, number = -1;
    p.pool.regions = &region;
    p.pool.S = 2;
    p.pool.pad_slot = -1;
    ck_assert_int_eq(rssm_slot_acquire(&p, &first, &slot, &err), RSSM_OK);
    ck_assert_int_eq(rssm_slot_release(&p, first, &err), RSSM_OK);
    p.slot_alloc->entries[slot].generation = UINT64_MAX >> 1; /* one bit for the slot: all but the last was used */
    p.slot_alloc->entries[slot].generation--;
    ck_assert_int_eq(rssm_slot_acquire(&p, &last, &number, &err), RSSM_OK);
    ck_assert(number == slot && last >> 1 == UINT64_MAX >> 1);
    ck_assert_int_eq(rssm_slot_release(&p, last, &err), RSSM_OK);
    for (int i = 0; i < 5; i++) { /* one slot is left */
        ck_assert_int_eq(rssm_slot_acquire(&p, &other, &number, &err), RSSM_OK);
        ck_assert(number != slot);
        uint64_t none = 0;
        ck_assert_int_eq(rssm_slot_acquire(&p, &none, &number, &err), RSSM_ERR_NO_SLOT);
        ck_assert_msg(strstr(err.message, "1 of 1") && strstr(err.message, "1 retired"), "%s", err.message);
        ck_assert_int_eq(rssm_slot_of_handle(&p, first, &number, &err), RSSM_ERR_HANDLE);
        ck_assert_int_eq(rssm_slot_of_handle(&p, last, &number, &err), RSSM_ERR_HANDLE);
        ck_assert_int_eq(rssm_slot_release(&p, last, &err), RSSM_ERR_HANDLE);
        ck_assert_int_eq(rssm_slot_release(&p, other, &err), RSSM_OK);
    }
    rssm_slot_alloc_free(&p);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("inside");
    TCase *tcase = tcase_create("inside");
    tcase_add_test(tcase, test_crc);
    tcase_add_test(tcase, test_last_generation);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
