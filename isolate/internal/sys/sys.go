// Package sys holds the raw system calls of isolate: numbers, structures, the
// tape and the child that walks it. Everything above it is plain data.
//
// A [Tape] is a list of system calls that a child of clone3(2) makes between
// its birth and execveat(2). It is built by ordinary Go code in the parent,
// printed and digested as data, encoded into memory that does not move
// ([Arena]), and walked by some eighty lines of assembly per architecture: no
// Go code runs in the child, no stack is used and nothing is allocated. The
// child shares the parent's memory (CLONE_VM) until it executes the program,
// so the tape needs no copy and results come back through memory.
//
// Rules for whoever changes the walker or adds a step:
//
//  1. The child may use registers, the tape, the status block and slots. Not
//     the stack: it is the stack of the thread that launched it.
//  2. The first error that is not declared ignorable ends the child; the status
//     block then names the step and the errno.
//  3. Arguments that are known only at run time come from slots: eight bytes
//     that an earlier step's result was stored in.
//
// The package does not decide what is safe. That is isolate/native and
// isolate/rlimit.
package sys
