"""Plugins that are wrong in one thing each, and the case in which the judge must notice.

    broken.py --list                                   their names
    broken.py NAME TEMPLATE.c OUTPUT.c                 the template's source with that one thing bent
    broken.py --judge REPLAYSSM-CONFORM FOLDER         runs the judge on FOLDER/broken_NAME.so for every NAME, with the
                                                       libcuda.so.1 of FOLDER/broken_driver
"""
import os
import re
import subprocess
import sys

# name: (the case that must fail, what it must say, text in the template, what stands there instead)
BROKEN = {
    'tiled_heads': ('formulas/b11_b12_heads_are_grouped', '',
                    't.h = hv / (d->HV / d->H);', 't.h = hv % d->H;'),
    'rounded_beta': ('formulas/b01_beta_is_not_rounded', '',
                     't->beta = s->p->d.beta_scale * sigmoid(',
                     't->beta = s->p->d.beta_scale * round_beta('),
    'read_past_count': ('decode/bar_S_of_every_dtype/*', '',
                        'for (int64_t j = 0; j < t->at.count; j++) {\n        sq += read_d(t, j, v) * t->qw[j];',
                        'sq += 0 * read_d(t, t->at.count, v);\n'
                        '    for (int64_t j = 0; j < t->at.count; j++) {\n        sq += read_d(t, j, v) * t->qw[j];'),
    'padding_writes_slot_0': ('decode/b31_padding_rows', '',
                              '            pad_row(&s, b);', '            decode_head(&s, (cursor){.flush = true}, b, 0);'),
    'padding_left_alone': ('decode/b31_padding_rows', '',
                           '            pad_row(&s, b);', '            continue;'),
    'nameless_tensor': ('validate/each role x each defect/*', 'no "`',
                        '"`%s` must have dtype %s; got %s", role_name(spec->role), want,',
                        '"a tensor must have dtype %s; got %s", want,'),
    'leak': ('pool/allocated/*', '', '    give(&mem, p->scratch, scratch_bytes(p));\n', ''),
    'two_symbols': ('boundary/one symbol', 'replayssm_second',
                    '__attribute__((visibility("default"))) const',
                    '__attribute__((visibility("default"))) int replayssm_second;\n'
                    '__attribute__((visibility("default"))) const'),
    'sizes_equal': ('boundary/in structs/*', 'longer', 'given < v1 || given > MAX_STRUCT_BYTES)\n        return FAIL(err, '
                    'RSSM_ERR_STRUCT_SIZE, "%s.struct_size = %llu; at least %llu (was it set?)", name,\n                    '
                    '(unsigned long long)given, (unsigned long long)v1);\n    for',
                    'given != v1)\n        return FAIL(err, RSSM_ERR_STRUCT_SIZE, "%s.struct_size", name);\n    for'),
    'tail_ignored': ('boundary/in structs/*', 'new byte set', 'if (((const char *)theirs)[i])', 'if (i > given)'),
    'null_entry': ('boundary/tables', 'NULL at byte', '        .reset = api_reset,\n', ''),
    'second_teardown': ('boundary/teardown/*', 'signal 11', 'if (!status && plugin && *plugin) {',
                        'if (!status && plugin) {\n        (*(volatile uint64_t *)&(*plugin)->magic)++;\n        (*plugin)->magic--;'),
    'hang': ('pool/reset/0', 'did not end', '    for (int64_t i = 0; !status && i < count; i++) {',
             '    for (volatile int64_t i = 0; !status && i < count; i += 0) {'),
    'exits': ('pool/reset/0', 'exit(0)', '    for (int64_t i = 0; !status && i < count; i++) {',
              '    exit(0);\n    for (int64_t i = 0; !status && i < count; i++) {'),
    'late_flush': ('cursor/rows_and_cursors_over_windows', '',
                   'cursor[1] >= p->d.ring_length - 1 - cursor[3]', 'cursor[1] >= p->d.ring_length - cursor[3]'),
    'prints': ('boundary/silence', 'printed', '    err->role = at.role;',
               '    fprintf(stderr, "%s\\n", format);\n    err->role = at.role;'),
    'short_err_written': ('boundary/err/*', 'short err', 'if (!theirs || theirs->struct_size < sizeof(rssm_error))',
                          'if (!theirs)'),
    'changes_device': ('boundary/current context', 'prepare: another CUDA context',
                       '        status = p->scratch ? RSSM_OK : no_memory(&err);',
                       '        status = p->scratch ? RSSM_OK : no_memory(&err);\n        use_primary("cuCtxSetCurrent");'),
    'leaves_context_pushed': ('boundary/current context', 'a refused decode: another CUDA context',
                              'return close_error(&err, theirs, status ? status : decode_step(p, &own, &err));',
                              'status = status ? status : decode_step(p, &own, &err);\n    if (status)\n'
                              '        use_primary("cuCtxPushCurrent_v2");\n    return close_error(&err, theirs, status);'),
    'output_of_rounded_d': ('decode/bar_S_of_every_dtype/*', '', 'sq + t->d[v] * t->kq, RSSM_FAULT_OUTPUT',
                            'sq + round_to(s->p->d.ring_dtype, t->d[v], 0, &s->p->fault) * t->kq, RSSM_FAULT_OUTPUT'),
}

# What bent lines call.
HELPERS = {
    'round_beta': '''
static double round_beta(double x)
{
    uint32_t faults = 0;
    return round_to(RSSM_DTYPE_BFLOAT16, sigmoid(x), 0, &faults);
}
''',
    # Makes device 0's context current, as a careless user of CUDA does.
    'use_primary': '''
#include <dlfcn.h>
static void use_primary(const char *how)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*use)(void *) = (int (*)(void *))dlsym(cuda, how);
    if (retain(&context, 0) == 0)
        use(context);
}
'''}
HELPERS_BEFORE = '\nstatic double softplus(double x)'


def bend(name, source, output):
    _, _, old, new = BROKEN[name]
    text = open(source).read()
    if text.count(old) != 1:
        sys.exit(f'{name}: the text to bend is {text.count(old)} times in {source}, not once')
    text = text.replace(old, new)
    for helper in HELPERS:
        if helper in new:
            text = text.replace(HELPERS_BEFORE, HELPERS[helper] + HELPERS_BEFORE, 1)
    open(output, 'w').write(text)


def judge(program, plugin, name):
    """None, or what went wrong."""
    case, says = BROKEN[name][:2]
    with_driver = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(plugin) + '/broken_driver')
    run = subprocess.run([program, plugin, '--filter', case, '--jobs', '2', '--timeout', '5'], capture_output=True,
                         text=True, timeout=300, env=with_driver)
    lines = [line for line in run.stdout.splitlines() if line.startswith('FAILED') and says in line]
    if not re.search(r'^\d+ passed, \d+ failed, \d+ skipped$', run.stdout, re.M):
        return f'the judge did not end: {run.returncode} {run.stdout} {run.stderr}'
    if run.returncode != 1 or not lines:
        return f'no case {case} fails saying "{says}": {run.stdout[-2000:]} {run.stderr}'
    print(f'{name}: {lines[0][:150]}')
    return None


def failures(program, plugin, case, *options):
    run = subprocess.run([program, plugin, '--filter', case, '--jobs', '2', *options], capture_output=True, text=True,
                         timeout=300)
    return sorted(re.sub(r' \([\d.]+ s\)', '', line) for line in run.stdout.splitlines() if line.startswith('FAILED'))


def judge_shared(program, folder):
    """Cases that share a child fail as they do alone, word for word."""
    plugin, case = f'{folder}/broken_nameless_tensor.so', BROKEN['nameless_tensor'][0]
    alone, shared = failures(program, plugin, case), failures(program, plugin, case, '--batch', '100')
    return [] if len(alone) > 100 and alone == shared else [f'{len(alone)} failures alone, {len(shared)} in shared children: '
                                                            f'{sorted(set(alone) ^ set(shared))[:4]}']


def main(args):
    if args == ['--list']:
        print('\n'.join(BROKEN))
    elif args[0] == '--judge':
        wrong = [f'{name}: {why}' for name in BROKEN if (why := judge(args[1], f'{args[2]}/broken_{name}.so', name))]
        wrong += judge_shared(args[1], args[2])
        if wrong:
            sys.exit('\n'.join(wrong))
    else:
        bend(*args)


main(sys.argv[1:])
