#include "textflag.h"

// The layout of a step and of the status block stands in arena_unsafe_linux.go.

// func startTape(args, size, tape, status uintptr) (pid uintptr)
//
// Calls clone3 with args and returns its result in the parent. The child never
// returns: it walks the tape with R12 at the current step and R13 at the status
// block, and uses no stack.
TEXT ·startTape(SB), NOSPLIT, $0-40
	MOVQ args+0(FP), DI
	MOVQ size+8(FP), SI
	MOVQ tape+16(FP), R12
	MOVQ status+24(FP), R13
	MOVQ $435, AX // clone3
	SYSCALL
	TESTQ AX, AX
	JEQ  walk
	MOVQ AX, pid+32(FP)
	RET

walk:
	MOVQ 56(R12), BX // flags: bits 0..5 say which arguments are addresses of slots
	MOVQ 8(R12), DI
	BTQ  $0, BX
	JCC  arg1
	MOVQ (DI), DI

arg1:
	MOVQ 16(R12), SI
	BTQ  $1, BX
	JCC  arg2
	MOVQ (SI), SI

arg2:
	MOVQ 24(R12), DX
	BTQ  $2, BX
	JCC  arg3
	MOVQ (DX), DX

arg3:
	MOVQ 32(R12), R10
	BTQ  $3, BX
	JCC  arg4
	MOVQ (R10), R10

arg4:
	MOVQ 40(R12), R8
	BTQ  $4, BX
	JCC  arg5
	MOVQ (R8), R8

arg5:
	MOVQ 48(R12), R9
	BTQ  $5, BX
	JCC  call
	MOVQ (R9), R9

call:
	MOVQ 0(R12), AX
	CMPQ AX, $-2
	JEQ  init
	CMPQ AX, $-3
	JEQ  park
	SYSCALL
	BTQ  $9, BX // a clone: its child goes on at the other tape and stores nothing
	JCC  store
	TESTQ AX, AX
	JNE  store
	MOVQ 72(R12), R12
	JMP  walk

store:
	MOVQ 64(R12), CX
	TESTQ CX, CX
	JEQ  check
	MOVQ AX, (CX)

check:
	CMPQ AX, $-4095 // unsigned: at or above is an errno
	JCS  next
	BTQ  $8, BX
	JCS  next
	NEGQ AX
	MOVQ AX, 8(R13)
	MOVQ R12, 0(R13)

	// A step failed: the status block says which.
	MOVQ $127, DI
	MOVQ $231, AX // exit_group
	SYSCALL
	INT  $3

next:
	ADDQ $80, R12
	JMP  walk

	// A cell that waits for its call: sleep while the word wake is 0, then go on
	// at the step whose address is in next, which was written before.
park:
	MOVQ $1, 208(R13)
	LEAQ 192(R13), DI
	MOVL (DI), AX
	TESTL AX, AX
	JNE  resume
	XORQ SI, SI   // FUTEX_WAIT
	XORQ DX, DX   // while it is 0
	XORQ R10, R10 // without end
	XORQ R8, R8
	XORQ R9, R9
	MOVQ $202, AX // futex
	SYSCALL
	JMP  park

resume:
	MOVQ 200(R13), R12
	JMP  walk

	// The reaper: wait4(-1) until the program is among the dead, keep its wait
	// status and usage, then end, or (mode 1) go on reaping until nobody is left.
init:
	MOVQ $1, 216(R13)
	MOVQ $-1, DI
	LEAQ 40(R13), SI
	MOVQ $0x40000000, DX // __WALL
	LEAQ 48(R13), R10
	MOVQ $61, AX         // wait4
	SYSCALL
	CMPQ AX, $-4         // EINTR
	JEQ  init
	TESTQ AX, AX
	JLT  end
	CMPQ AX, 16(R13)
	JNE  init
	MOVQ $1, 24(R13)
	CMPQ 32(R13), $0
	JEQ  end

drain:
	MOVQ $-1, DI
	XORQ SI, SI
	MOVQ $0x40000000, DX
	XORQ R10, R10
	MOVQ $61, AX
	SYSCALL
	CMPQ AX, $-4
	JEQ  drain
	TESTQ AX, AX
	JGE  drain

end:
	XORQ DI, DI
	MOVQ $231, AX
	SYSCALL
	INT  $3
