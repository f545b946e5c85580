// Package selfconfine confines a daemon that has opened everything it needs, in the way
// that the daemon confines others.
//
//	err := selfconfine.Apply(selfconfine.Config{Read: []string{"/usr", policyDir}, Write: []string{stateDir}, TCPPort: 7142})
//	r := selfconfine.Report() // what is in force, as the kernel says it
//
// Apply changes every thread of the process. Each step needs the one before, or the one
// after would forbid it:
//
//  1. not dumpable: no other process of the user attaches to it or reads its memory
//  2. capabilities: none but those that Config keeps
//  3. no_new_privs, which the next two need
//  4. Landlock, through go-landlock: files as listed, no TCP connection out,
//     binding of one port, no signal and no abstract socket outside
//  5. seccomp: the system calls that a Go server makes once its sockets are
//     open, and no others ([Policy])
//
// The confinement can't be undone, and children inherit it. A child of a confined process
// couldn't build a cell, so the filter lets the process start nothing. A process that was
// made before starts palyra-cell for palyrad (isolate/cell.Starter).
//
// palyra-egress is confined in the same way with [Config.Internet]: it connects, and writes no
// file.
//
// # What it does not protect against
//
// Open things stay open: sockets, the journal, keys in memory. Code that takes over the
// daemon can use all of them, and can ask palyra-cell for runs: it holds the key that
// grants are made with. It can't start a program of its own in the host, reach the network,
// read other files or lose its traces in them. Landlock doesn't see metadata: the daemon
// can still read names, sizes and modes of the host's files, and change modes and times of
// those that its user owns. So it can open them to other users of the host; a run in a cell
// over their folder could, too. palyra-egress changes none: its filter lets it not.
package selfconfine

// Config says what the process needs from here on. Its zero value leaves it only the things
// that are open.
type Config struct {
	// Read are files, and directories with all beneath them, that may be read. Missing ones
	// are left out.
	Read []string
	// Write are directories in which the process may do everything but make devices.
	Write []string
	// TCPPort may be bound, if not 0. Needs Landlock ABI 4; the filter forbids
	// making sockets anyway.
	TCPPort uint16
	// Internet lets the process make TCP and UDP sockets, connect and bind. Its files can be read
	// alone: Write has to be empty.
	Internet bool
	// KeepCapabilities are bits of capabilities(7) that stay if they are set.
	KeepCapabilities uint64
}

// Controls is a Report: the controls and whether all are on. It serialises.
type Controls struct {
	// Enforced says that all controls are on.
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
