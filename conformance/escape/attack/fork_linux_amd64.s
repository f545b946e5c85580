#include "textflag.h"

// func fork(flags uintptr) (pid uintptr)
//
// The scheduler asks a goroutine that has run for 10 ms to yield by putting a
// value that no stack pointer is above into g.stackguard0, so that the prologue
// of the next function asks the runtime for more stack. A process that is forked
// while the request stands would follow it, into a runtime whose other threads
// are not there, and sleep for ever. The child therefore gets its guard back: 2048
// bytes above the end of its stack, which is more than the runtime leaves (928, and
// twice that under the race detector). In the child nobody makes such requests.
//
// That g begins with stack.lo (0), stack.hi (8) and stackguard0 (16) is known to
// the assembler and the linker, too (runtime/runtime2.go).
TEXT ·fork(SB), NOSPLIT, $0-16
	MOVQ flags+0(FP), DI
	XORL SI, SI
	XORL DX, DX
	XORL R10, R10
	XORL R8, R8
	MOVL $56, AX // clone
	SYSCALL
	TESTQ AX, AX
	JNE  done
	MOVQ (TLS), CX
	MOVQ 0(CX), DX
	ADDQ $2048, DX
	MOVQ DX, 16(CX)

done:
	MOVQ AX, pid+8(FP)
	RET
