/* A fatbin as read-only data: SYMBOL and FATBIN come from the build. */
    .section .rodata
    .balign 64
    .globl SYMBOL
    .hidden SYMBOL
SYMBOL:
    .incbin FATBIN
    .section .note.GNU-stack, "", @progbits
