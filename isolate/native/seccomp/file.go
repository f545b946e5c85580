package seccomp

const (
	setIDs     = 0o6000     // S_ISUID | S_ISGID
	accessMode = 3          // O_ACCMODE: O_RDONLY, O_WRONLY, O_RDWR, and a fourth without a name
	creates    = 0o20000100 // O_CREAT | __O_TMPFILE: without them open ignores its mode
	modeType   = 0o170000   // S_IFMT
	typeReg    = 0o100000   // S_IFREG
	typeSock   = 0o140000   // S_IFSOCK
	punchHole  = 2          // FALLOC_FL_PUNCH_HOLE
)

// ioctl(2) commands of files, pipes, sockets and terminals that ordinary
// programs use. Devices have none: a cell has no device but null, zero, full,
// random, urandom and its own terminals.
var ioctlAllowed = []uint64{
	0x2,                            // FIGETBSZ
	0x5401, 0x5402, 0x5403, 0x5404, // TCGETS, TCSETS, TCSETSW, TCSETSF
	0x5405, 0x5406, 0x5407, 0x5408, // TCGETA, TCSETA, TCSETAW, TCSETAF
	0x5409, 0x540a, 0x540b, // TCSBRK, TCXONC, TCFLSH
	0x540e, 0x540f, 0x5410, // TIOCSCTTY, TIOCGPGRP, TIOCSPGRP
	0x5411,         // TIOCOUTQ
	0x5413, 0x5414, // TIOCGWINSZ, TIOCSWINSZ
	0x541b,         // FIONREAD
	0x5420, 0x5421, // TIOCPKT, FIONBIO
	0x5422,                         // TIOCNOTTY
	0x5424, 0x5425, 0x5429, 0x5441, // TIOCGETD, TCSBRKP, TIOCGSID, TIOCGPTPEER
	0x5450, 0x5451, 0x5452, 0x5460, // FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE
	0x8905,         // SIOCATMARK
	0x8910, 0x8912, // SIOCGIFNAME, SIOCGIFCONF
	0x8913, 0x8915, 0x8917, 0x8919, 0x891b, // SIOCGIF FLAGS, ADDR, DSTADDR, BRDADDR, NETMASK
	0x8921, 0x8927, 0x8933, 0x8942, // SIOCGIF MTU, HWADDR, INDEX, TXQLEN
	0x802c542a, 0x402c542b, 0x402c542c, 0x402c542d, // TCGETS2, TCSETS2, TCSETSW2, TCSETSF2
	0x80045430, 0x40045431, 0x80045439, // TIOCGPTN, TIOCSPTLCK, TIOCGPTLCK
	0x80045200,             // RNDGETENTCNT
	0x80086601, 0xc020660b, // FS_IOC_GETFLAGS, FS_IOC_FIEMAP
	0x801c581f,             // FS_IOC_FSGETXATTR
	0x40049409, 0x4020940d, // FICLONE, FICLONERANGE
}

// ioctl commands that are refused by name: they type into, paste to, hang up,
// lock or reprogram a terminal. All others fail as if the file did not have them.
var ioctlDenied = []uint64{
	0x540c,                 // TIOCEXCL
	0x5412,                 // TIOCSTI
	0x541c, 0x541d, 0x541f, // TIOCLINUX, TIOCCONS, TIOCSSERIAL
	0x5423,         // TIOCSETD
	0x5437, 0x5457, // TIOCVHANGUP, TIOCSLCKTRMIOS
}

// fileRules are about what is opened and made. Without namespaces the files of
// the host are in reach, and landlock stands alone before them.
func fileRules(namespaces bool) []Rule {
	noSetID := func(mode int, why string, calls ...string) Rule {
		return Rule{Calls: calls, Else: Allow, Why: why,
			Clauses: []Clause{when(Errno(EPERM), anyBit(mode, setIDs))}}
	}
	opens := func(flags int, call string) Rule {
		r := Rule{Calls: []string{call}, Else: Allow, Why: "open files, but not plant setuid ones",
			Clauses: []Clause{when(Errno(EPERM), anyBit(flags, creates), anyBit(flags+1, setIDs))}}
		if !namespaces {
			// The fourth access mode, neither to read nor to write, is for ioctl on
			// devices. Landlock asks for no right then, whatever the file, and modes,
			// times and attributes can be changed through the descriptor.
			r.Why += ", nor without a right that landlock knows"
			r.Clauses = append(r.Clauses, when(Errno(EACCES), masked(flags, accessMode, accessMode)))
		}
		return r
	}
	node := func(mode int, call string) Rule {
		return Rule{Calls: []string{call}, Else: Errno(EPERM),
			Clauses: []Clause{
				when(Errno(EPERM), anyBit(mode, setIDs)),
				when(Allow, masked(mode, modeType, 0, typeReg, typeSock)),
			},
			Why: "regular files and sockets; a FIFO or device would wait for whoever reads the workspace"}
	}
	return []Rule{
		opens(1, "open"),
		opens(2, "openat"),
		noSetID(1, "create files and directories, but not setuid ones", "creat", "mkdir"),
		noSetID(2, "create directories, but not setgid ones", "mkdirat"),
		node(1, "mknod"),
		node(2, "mknodat"),
		// posix_fallocate(3) and linkers go on by other means.
		{Calls: []string{"fallocate"}, Else: Errno(ENOTSUP), Clauses: []Clause{when(Allow, anyBit(1, punchHole))},
			Why: "gigabytes of a disk are reserved in a millisecond, and samples bound layers, caches and private workspaces on one; space can be freed"},
		{Calls: []string{"ioctl"}, Else: Errno(ENOTTY),
			Clauses: []Clause{
				when(Allow, is(1, ioctlAllowed...)),
				when(Errno(EPERM), is(1, ioctlDenied...)),
			},
			Why: "plain files, pipes, sockets and own terminals only; the kernel takes the command as 32 bits, so does this"},
	}
}
