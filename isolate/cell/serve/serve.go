// Package serve is palyra-cell, the one process that forks: [Cell] serves one palyra, [Starter]
// starts palyra-cells for a palyrad that may start nothing itself.
//
// At tier C palyra-cell is the first process of a PID namespace, so whatever it dies of, the
// kernel kills every cell. It keeps only a private copy of the host's mounts, from which it
// clones workspaces. The threads that clone, and so every cell, live in a mount namespace that
// holds only the template (see template_linux.go). As root palyra-cell keeps the host's
// capabilities; otherwise it's root in a user namespace, where the kernel lets it do no more
// than the user could.
//
// At tier B there are no namespaces. palyra-cell runs one program at a time and kills the rest
// of its tree when the program ends.
//
// It verifies every grant itself, with the key that its palyra sent, and runs nothing without
// one.
//
// It doesn't protect against the palyra at the other end of its socket, which decides what runs.
package serve
