#include "textflag.h"

// func fork(flags uintptr) (pid uintptr)
//
// See fork_linux_amd64.s for why it is not a plain system call.
TEXT ·fork(SB), NOSPLIT, $0-16
	MOVD flags+0(FP), R0
	MOVD ZR, R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD $220, R8 // clone
	SVC
	CBNZ R0, done
	MOVD 0(g), R1
	ADD  $2048, R1
	MOVD R1, 16(g)

done:
	MOVD R0, pid+8(FP)
	RET
