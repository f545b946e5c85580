//go:build linux

#include "textflag.h"

// func int80(nr, a0, a1, a2, a3, a4 uintptr) uintptr
//
// The 32-bit ABI takes its arguments in EBX, ECX, EDX, ESI and EDI, and its
// entry from 64-bit code zeroes R8 to R11 (and on some kernels leaves them).
TEXT ·int80(SB),NOSPLIT,$0-56
	MOVQ nr+0(FP), AX
	MOVQ a0+8(FP), BX
	MOVQ a1+16(FP), CX
	MOVQ a2+24(FP), DX
	MOVQ a3+32(FP), SI
	MOVQ a4+40(FP), DI
	INT  $0x80
	MOVL AX, AX
	MOVQ AX, ret+48(FP)
	RET
