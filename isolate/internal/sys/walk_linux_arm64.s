#include "textflag.h"

// The layout of a step and of the status block stands in arena_unsafe_linux.go.

// func startTape(args, size, tape, status uintptr) (pid uintptr)
//
// Calls clone3 with args and returns its result in the parent. The child never
// returns: it walks the tape with R19 at the current step and R20 at the status
// block, and uses no stack.
TEXT ·startTape(SB), NOSPLIT, $0-40
	MOVD args+0(FP), R0
	MOVD size+8(FP), R1
	MOVD tape+16(FP), R19
	MOVD status+24(FP), R20
	MOVD $435, R8 // clone3
	SVC
	CBZ  R0, walk
	MOVD R0, pid+32(FP)
	RET

walk:
	MOVD 56(R19), R21 // flags: bits 0..5 say which arguments are addresses of slots
	MOVD 8(R19), R0
	TBZ  $0, R21, arg1
	MOVD (R0), R0

arg1:
	MOVD 16(R19), R1
	TBZ  $1, R21, arg2
	MOVD (R1), R1

arg2:
	MOVD 24(R19), R2
	TBZ  $2, R21, arg3
	MOVD (R2), R2

arg3:
	MOVD 32(R19), R3
	TBZ  $3, R21, arg4
	MOVD (R3), R3

arg4:
	MOVD 40(R19), R4
	TBZ  $4, R21, arg5
	MOVD (R4), R4

arg5:
	MOVD 48(R19), R5
	TBZ  $5, R21, call
	MOVD (R5), R5

call:
	MOVD 0(R19), R8
	CMN  $2, R8 // -2 is the reaper
	BEQ  init
	CMN  $3, R8 // -3 waits for its call
	BEQ  park
	SVC
	TBZ  $9, R21, store // a clone: its child goes on at the other tape and stores nothing
	CBNZ R0, store
	MOVD 72(R19), R19
	B    walk

store:
	MOVD 64(R19), R22
	CBZ  R22, check
	MOVD R0, (R22)

check:
	CMN  $4095, R0 // unsigned: at or above -4095 is an errno
	BLO  next
	TBNZ $8, R21, next
	NEG  R0, R0
	MOVD R0, 8(R20)
	MOVD R19, 0(R20)
	MOVD $127, R0
	MOVD $94, R8 // exit_group
	SVC
	BRK

next:
	ADD $80, R19, R19
	B   walk

	// A cell that waits for its call: sleep while the word wake is 0, then go on
	// at the step whose address is in next, which was written before.
park:
	MOVD  $1, R22
	ADD   $208, R20, R0
	STLR  R22, (R0)
	ADD   $192, R20, R0
	LDARW (R0), R22
	CBNZ  R22, resume
	MOVD  $0, R1  // FUTEX_WAIT
	MOVD  $0, R2  // while it is 0
	MOVD  $0, R3  // without end
	MOVD  $0, R4
	MOVD  $0, R5
	MOVD  $98, R8 // futex
	SVC
	B     park

resume:
	MOVD 200(R20), R19
	B    walk

	// The reaper: wait4(-1) until the program is among the dead, keep its wait
	// status and usage, then end, or (mode 1) go on reaping until nobody is left.
init:
	MOVD $1, R22
	ADD  $216, R20, R0
	STLR R22, (R0)
	MOVD $-1, R0
	ADD  $40, R20, R1
	MOVD $0x40000000, R2 // __WALL
	ADD  $48, R20, R3
	MOVD $260, R8        // wait4
	SVC
	CMN  $4, R0          // EINTR
	BEQ  init
	TBNZ $63, R0, end
	MOVD 16(R20), R22
	CMP  R22, R0
	BNE  init
	MOVD $1, R22
	MOVD R22, 24(R20)
	MOVD 32(R20), R22
	CBZ  R22, end

drain:
	MOVD $-1, R0
	MOVD $0, R1
	MOVD $0x40000000, R2
	MOVD $0, R3
	MOVD $260, R8
	SVC
	CMN  $4, R0
	BEQ  drain
	TBZ  $63, R0, drain

end:
	MOVD $0, R0
	MOVD $94, R8
	SVC
	BRK
