// Package selfconfine puts a daemon that has opened what it needs under the
// same kind of confinement that it gives to others.
//
//	err := selfconfine.Apply(selfconfine.Config{Read: []string{"/usr", policyDir}, Write: []string{stateDir}, TCPPort: 7142})
//	r := selfconfine.Report() // what is in force, as the kernel says it
//
// Apply changes every thread of the process, in an order of which each step
// needs the one before or would be forbidden by the one after:
//
//  1. not dumpable: no other process of the user attaches to it or reads its memory
//  2. capabilities: none but those that Config keeps
//  3. no_new_privs, which the next two need
//  4. Landlock, through go-landlock: files as listed, no TCP connection out,
//     binding of one port, no signal and no abstract socket outside
//  5. seccomp: the system calls that a Go server makes once its sockets are
//     open, and no others ([Policy])
//
// It cannot be undone, and it is inherited. What a confined process starts could
// not build a cell; the filter therefore lets it start nothing. palyrad has
// palyra-cell started by a process that was made before (isolate/cell.Starter).
//
// # What it does not protect against
//
// What was open before stays open: sockets, the journal, keys in memory. Code
// that takes over the daemon can use all of them, and can ask palyra-cell for
// runs: it holds the key that grants are made with. It cannot start a program of
// its own in the host, reach the network, read other files or lose its traces
// in them. Landlock does not see metadata: names, sizes and modes of the host's
// files can still be read.
package selfconfine

// Config says what the process needs from here on. Its zero value leaves it what
// it has open and nothing else.
type Config struct {
	// Read are files, and directories with all beneath them, that may be read.
	// What does not exist is left out.
	Read []string
	// Write are directories in which everything may be done but making devices.
	Write []string
	// TCPPort may be bound, if not 0. Needs Landlock ABI 4; the filter forbids
	// making sockets anyway.
	TCPPort uint16
	// KeepCapabilities are bits of capabilities(7) that stay if they are there.
	KeepCapabilities uint64
}

// Controls is what a Report consists of. It serialises.
type Controls struct {
	// Enforced says that all of them are on.
	Enforced bool      `json:"enforced"`
	Controls []Control `json:"controls"`
}

// Control is one control as it was observed.
type Control struct {
	Name   string `json:"name"` // stable
	On     bool   `json:"on"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // what a person can do if it is not on
}
