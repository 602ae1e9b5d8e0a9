/* The ABI's types and nothing else, for libabigail: what gate.sh dumps and compares with the committed baseline. */
#include "replayssm.h"
#include "rssm_conv.h"
#include "rssm_fault.h"
#include "rssm_slots.h"
#include "rssm_verify.h"

const rssm_api *replayssm_get_api(uint32_t abi_major);
const rssm_api *replayssm_get_api(uint32_t abi_major)
{
    (void)abi_major;
    return 0;
}

#ifdef WITH_EXTENSIONS
const rssm_fault_api *fault_table(void);
const rssm_slots_api *slots_table(void);
const rssm_verify_api *verify_table(void);
const rssm_conv_api *conv_table(void);

const rssm_fault_api *fault_table(void)
{
    return 0;
}

const rssm_slots_api *slots_table(void)
{
    return 0;
}

const rssm_verify_api *verify_table(void)
{
    return 0;
}

const rssm_conv_api *conv_table(void)
{
    return 0;
}
#endif
