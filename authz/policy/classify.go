package policy

import (
	"strings"
	"sync"
)

// Kind says how an executable treats its arguments.
type Kind string

// The kinds. All but Other turn arguments or input into other programs.
const (
	Shell       Kind = "shell"       // bash, busybox, pwsh
	Interpreter Kind = "interpreter" // python, node, perl, gdb
	Loader      Kind = "loader"      // env, xargs, timeout, sudo: runs the program named in its arguments
	Wrapper     Kind = "wrapper"     // env, xargs, timeout, sudo: starts the program named in its arguments
	Other       Kind = "other"
)

// Classify names the kind and the family of an executable by its resolved path. For a script,
// interpreter is the resolved path of the program that reads it, else "". The family is the
// base name without version and variant: "python" for /usr/bin/python3.11.
//
// Classify goes by names only. A copy of a shell under another name is Other: it isn't in a
// system directory, so the default set asks a person about it, and the cell confines it like
// any program. Programs that can start others but aren't made for it (find, tar, git, vim,
// make, sed) are Other too; the default set doesn't list them, so they need approval.
func Classify(path, interpreter string) (kind Kind, family string) {
	if interpreter != "" {
		kind, family = classifyName(baseName(interpreter))
		if kind == Other {
			// A program that reads a script is an interpreter, known or not. The mark keeps its
			// name apart from the known families.
			return Interpreter, "#!" + family
		}
		return kind, family
	}
	return classifyName(baseName(path))
}

func classifyName(name string) (Kind, string) {
	if len(name) > 4 && strings.EqualFold(name[len(name)-4:], ".exe") {
		name = strings.ToLower(name[:len(name)-4])
	}
	if k, ok := families()[name]; ok { // the usual case, and names that end in a digit
		return k, name
	}
	if isLoader(name) {
		return Loader, "ld.so"
	}
	if rest, ok := strings.CutPrefix(name, "qemu-"); ok && rest != "img" && rest != "nbd" && rest != "io" && rest != "ga" {
		return Loader, "qemu"
	}
	family := stripVersion(name)
	if k, ok := families()[family]; ok {
		return k, family
	}
	for _, plain := range variants(name) {
		if k, ok := families()[plain]; ok {
			return k, plain
		}
	}
	return Other, family
}

// variants returns the names that a program may be a build of, as distributions spell builds:
// for a machine ("perl5.36-x86_64-linux-gnu", "x86_64-linux-gnu-python3"), with a word after
// the version ("luajit-2.1.0-beta3"), as one of several ("octave-cli", "bsd-csh").
func variants(name string) (out []string) {
	name = withoutMachine(name)
	out = append(out, name, stripVersion(name))
	first, rest, more := strings.Cut(name, "-")
	if !more {
		first, rest, more = strings.Cut(name, ".")
	}
	if !more {
		return out
	}
	for _, origin := range [...]string{"bsd", "gnu", "posix", "real"} {
		if first == origin {
			out = append(out, rest, stripVersion(rest))
		}
	}
	for word := range strings.FieldsFuncSeq(rest, func(r rune) bool { return r == '-' || r == '.' }) {
		switch plain := strings.TrimRight(word, "0123456789"); plain {
		case "", "alpha", "beta", "rc", "cli", "bin", "real", "static", "dbg", "debug", "minimal", "preview", "full", "nox":
		default:
			return out
		}
	}
	return append(out, first, stripVersion(first))
}

// withoutMachine removes a triplet such as x86_64-linux-gnu from either end of a name.
func withoutMachine(name string) string {
	i := strings.Index(name, "-linux-")
	if i < 0 {
		return name
	}
	before, after := name[:i], name[i+len("-linux-"):]
	before = before[:strings.LastIndexByte(before, '-')+1]
	_, after, _ = strings.Cut(after, "-")
	return strings.Trim(before+after, "-")
}

// isLoader knows the names of dynamic loaders: ld.so, ld-linux-x86-64.so.2, ld-2.31.so,
// ld-musl-aarch64.so.1, ld64.so.2.
func isLoader(name string) bool {
	return strings.HasPrefix(name, "ld") && (strings.HasSuffix(name, ".so") || strings.Contains(name, ".so.")) &&
		(len(name) > 2 && (name[2] == '-' || name[2] == '.' || name[2] == '6' || name[2] == '3'))
}

// stripVersion removes the suffixes that distributions add: versions ("3.11", "-5.1"), debug
// and static variants ("-dbg", "-static", "d").
func stripVersion(name string) string {
	for {
		before := name
		for _, s := range [...]string{"-dbg", "-static", "-preview", "-minimal"} {
			name = strings.TrimSuffix(name, s)
		}
		n := len(name)
		for n > 0 && (isDigit(name[n-1]) || name[n-1] == '.') {
			n--
		}
		for n > 0 && (name[n-1] == '-' || name[n-1] == '_') {
			n--
		}
		end := name[:n]
		// ABI letters follow the digits: python3.8d, python2.7m.
		if end == name && len(name) > 1 && strings.IndexByte("dmut", name[len(name)-1]) >= 0 && isDigit(name[len(name)-2]) {
			end = name[:len(name)-1]
		}
		if end == "" { // a name of digits only stays as it is
			return name
		}
		if name = end; name == before {
			return name
		}
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// baseName is path.Base for resolved paths, without its allocation or cleaning. A Windows path
// ends at its last backslash.
func baseName(p string) string { return p[strings.LastIndexAny(p, `/\`)+1:] }

func dirName(p string) string {
	switch i := strings.LastIndexAny(p, `/\`); {
	case i < 0:
		return ""
	case i == 0:
		return p[:1]
	default:
		return p[:i]
	}
}

// dangerous reports whether the kind needs a policy that permits it by name.
func (k Kind) dangerous() bool { return k != Other }

// families is the table of known names. Each name is a decision: the program is made to run
// code or programs that its arguments or input name. The table is made on first use, because
// most processes start without a decision.
var families = sync.OnceValue(func() map[string]Kind {
	m := map[string]Kind{"ld.so": Loader, "qemu": Loader, "wine": Loader, "wine64": Loader}
	for kind, names := range map[Kind]string{
		Shell: `sh bash rbash dash zsh ksh ksh93 mksh lksh pdksh fish csh tcsh ash hush posh yash rc es elvish nu xonsh
			osh sash busybox toybox pwsh powershell cmd`,
		Interpreter: `python pythonw pypy ipython jython node nodejs deno bun qjs d8 perl ruby irb jruby php php-cgi phpdbg
			php-fpm lua luajit tclsh wish expect Rscript R awk gawk mawk nawk original-awk gdb lldb guile racket sbcl
			clisp ecl scheme java jshell groovy scala kotlin erl escript elixir iex julia octave ghci runghc runhaskell
			ocaml swipl gst osascript cscript wscript lli llvm-rtdyld jrunscript jexec`,
		Wrapper: `env xargs parallel nice ionice chrt taskset numactl nohup timeout setsid stdbuf unbuffer time watch flock
			sudo sudoedit su doas pkexec run0 runuser setpriv capsh newgrp sg chroot unshare nsenter bwrap firejail
			nsjail minijail0 strace ltrace perf valgrind script scriptreplay ssh tmux screen dtach systemd-run
			start-stop-daemon run-parts fakeroot faketime eatmydata prlimit setarch linux32 linux64 i386 x86_64 choom
			uclampset coresched dbus-run-session dbus-launch xvfb-run tini dumb-init catatonit s6-setuidgid chpst gosu
			su-exec aa-exec runcon systemd-cat systemd-inhibit systemd-socket-activate systemd-nspawn switch_root ssh-agent gpg-agent
			msgexec msgfilter scriptlive logsave cgexec proot schroot fakechroot daemonize setlock softlimit envdir setuidgid
			chronic ifne entr rlwrap sshpass torsocks proxychains gdbserver rr uftrace mpirun mpiexec`,
	} {
		for n := range strings.FieldsSeq(names) {
			m[n] = kind
		}
	}
	return m
})
