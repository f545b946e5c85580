package seccomp

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/bpf"

	"palyra/isolate/tier"
)

// variants are all policies that Cell can give, up to the cookie.
func variants() []Policy {
	var ps []Policy
	for i, o := range []Options{
		{Tier: tier.B}, {Tier: tier.B, AllowPathMetadata: true}, {Tier: tier.B, ReadOnly: true},
		{Tier: tier.C}, {Tier: tier.C, AllowInet: true}, {Tier: tier.C, AllowInet: true, AllowUnix: true},
		{Tier: tier.C, AllowInet: true, NoFastOpen: true},
		{Tier: tier.C, NoPair: true}, {Tier: tier.C, AllowUncounted: true}, {Tier: tier.C, AllowShared: true, AllowIPC: true},
		{Tier: tier.B, AllowShared: true}, {Tier: tier.C, AllowUncounted: true, AllowShared: true, AllowIPC: true},
	} {
		for _, cookie := range []uint64{0, 0xfedcba9876543210} {
			o.ExecCookie = cookie
			p := Cell(o)
			p.Name = fmt.Sprintf("%s-%d-%x", p.Name, i, cookie)
			ps = append(ps, p)
		}
	}
	return ps
}

// TestIgnored holds options to the tier that they are for.
func TestIgnored(t *testing.T) {
	for _, o := range [][2]Options{
		{{Tier: tier.B}, {Tier: tier.B, AllowInet: true}}, {{Tier: tier.B}, {Tier: tier.B, AllowUnix: true}}, {{Tier: tier.B}, {Tier: tier.B, AllowIPC: true}},
		{{Tier: tier.C}, {Tier: tier.C, AllowPathMetadata: true}}, {{Tier: tier.C}, {Tier: tier.C, ReadOnly: true}},
		{{Tier: tier.B, ReadOnly: true}, {Tier: tier.B, ReadOnly: true, AllowPathMetadata: true}},
		{{Tier: tier.None}, {Tier: tier.None, AllowInet: true}}, {{Tier: tier.B}, {Tier: tier.B, NoFastOpen: true}},
	} {
		a, err := Compile(Cell(o[0]), AMD64)
		b, err2 := Compile(Cell(o[1]), AMD64)
		if err != nil || err2 != nil || a.Digest() != b.Digest() {
			t.Errorf("%+v and %+v differ (%v, %v)", o[0], o[1], err, err2)
		}
	}
}

var arches = []Arch{AMD64, ARM64}

// TestNumbers compares the tables with the sources of golang.org/x/sys, for
// both architectures whatever the tests run on.
func TestNumbers(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	re := regexp.MustCompile(`(?m)^\s+SYS_([A-Z0-9_]+)\s*=\s*(\d+)$`)
	for _, a := range arches {
		src, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+a.String()+".go"))
		if err != nil {
			t.Fatal(err)
		}
		found := make(map[string]bool)
		for _, m := range re.FindAllStringSubmatch(string(src), -1) {
			name := strings.ToLower(m[1])
			if name == "arch_specific_syscall" { // the start of a range, not a call
				continue
			}
			found[name] = true
			if got, ok := a.Number(name); !ok || strconv.Itoa(int(got)) != m[2] {
				t.Errorf("%s: %s: got %d %t, want %s", a, name, got, ok, m[2])
			}
		}
		if len(found) < 300 {
			t.Errorf("%s: x/sys has %d calls", a, len(found))
		}
		for name := range a.numbers() {
			if !found[name] {
				t.Errorf("%s: x/sys has no %q", a, name)
			}
		}
	}
}

// TestEveryCallHasARule holds the policies to a decision on every known call:
// nothing is denied by having been forgotten.
func TestEveryCallHasARule(t *testing.T) {
	for _, p := range variants() {
		named := make(map[string]bool)
		for _, r := range p.Rules {
			for _, c := range r.Calls {
				named[c] = true
			}
		}
		for _, a := range arches {
			for name := range a.numbers() {
				if !named[name] {
					t.Errorf("%s: no rule names %q", p.Name, name)
				}
			}
		}
	}
}

// tracer interprets a program and remembers which instructions ran and which
// way its jumps went.
type tracer struct {
	prog []Instr
	hit  []int // bits: 1 reached, 2 jump taken, 4 jump not taken
}

func (tr *tracer) run(t testing.TB, words [16]uint32) Action {
	var acc uint32
	for pc := 0; pc < len(tr.prog); pc++ {
		i := tr.prog[pc]
		tr.hit[pc] |= 1
		cond := func(b bool) {
			if b {
				tr.hit[pc] |= 2
				pc += int(i.Jt)
			} else {
				tr.hit[pc] |= 4
				pc += int(i.Jf)
			}
		}
		switch i.Code {
		case ldAbs:
			acc = words[i.K/4]
		case andK:
			acc &= i.K
		case jaK:
			pc += int(i.K)
		case jeqK:
			cond(acc == i.K)
		case jgeK:
			cond(acc >= i.K)
		case jsetK:
			cond(acc&i.K != 0)
		case retK:
			return Action(i.K)
		default:
			t.Fatalf("instruction %d: code %#x", pc, i.Code)
		}
	}
	t.Fatal("ran off the end")
	return 0
}

// words lays Data out as struct seccomp_data on a little-endian machine.
func words(d Data) (w [16]uint32) {
	w[0], w[1] = d.Nr, d.Arch
	w[2], w[3] = 0xdeadbeef, 0xfeedface // instruction pointer
	for i, a := range d.Args {
		w[4+2*i], w[5+2*i] = uint32(a), uint32(a>>32)
	}
	return w
}

// machine is a compiled policy with everything that can run it.
type machine struct {
	policy  Policy
	meaning func(Data) Action
	arch    Arch
	vm      *bpf.VM
	tracer  tracer
}

func newMachine(t testing.TB, p Policy, a Arch) *machine {
	t.Helper()
	f, err := Compile(p, a)
	if err != nil {
		t.Fatal(err)
	}
	raw := make([]bpf.RawInstruction, f.Len())
	for i, in := range f.Instrs() {
		raw[i] = bpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	ins, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("x/net/bpf does not know an instruction")
	}
	vm, err := bpf.NewVM(ins)
	if err != nil {
		t.Fatalf("%s %s: %v", p.Name, a, err)
	}
	return &machine{p, p.meaning(a), a, vm, tracer{f.Instrs(), make([]int, f.Len())}}
}

// check runs d through the x/net interpreter, the tracer and the rule table.
func (m *machine) check(t testing.TB, d Data) Action {
	t.Helper()
	w := words(d)
	packet := make([]byte, 0, 64)
	for _, v := range w { // x/net/bpf loads big endian
		packet = binary.BigEndian.AppendUint32(packet, v)
	}
	n, err := m.vm.Run(packet)
	if err != nil {
		t.Fatal(err)
	}
	got, want := Action(uint32(n)), m.meaning(d)
	if got != want {
		t.Fatalf("%s %s: %+v: program says %s, rules say %s", m.policy.Name, m.arch, d, got, want)
	}
	if traced := m.tracer.run(t, w); traced != want {
		t.Fatalf("%s %s: %+v: tracer says %s, rules say %s", m.policy.Name, m.arch, d, traced, want)
	}
	return got
}

// interesting are values of one argument at which a rule may change its mind.
func interesting(r *Rule, arg int) []uint64 {
	vs := []uint64{0}
	for _, c := range r.Clauses {
		for _, w := range c.When {
			if w.Arg != arg {
				continue
			}
			for _, v := range w.Values {
				vs = append(vs, v, v+1, v-1, v|1<<32, v^1<<63, v^1<<40)
				if w.Mask != 0 {
					vs = append(vs, v|uint64(^w.Mask), uint64(^w.Mask))
				}
			}
			for b := range 32 {
				if w.Mask&(1<<b) != 0 {
					vs = append(vs, 1<<b, 1<<b|1<<44, uint64(^w.Mask)|0xffffffff<<32)
				}
			}
		}
	}
	return append(vs, 0xffffffff, ^uint64(0))
}

// corpus calls f with data that reaches every decision of p: every number with
// its neighbours, and for rules with conditions the interesting values of each
// argument, combined with those of the others at random.
func corpus(p Policy, a Arch, f func(Data)) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, arch := range []uint32{0, 0x40000003, 0xc000003e, 0xc00000b7, 0x40000028, 0xffffffff} {
		for _, nr := range []uint32{0, 1, 11, 0x40000000, 0x40000001, 0x3fffffff, 0x7fffffff, 0x80000000, 0xffffffff} {
			f(Data{Arch: arch, Nr: nr})
		}
	}
	for nr := range uint32(1100) {
		f(Data{Arch: a.Audit(), Nr: nr})
		f(Data{Arch: a.Audit(), Nr: nr | x32Bit})
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		if len(r.Clauses) == 0 {
			continue
		}
		var values [6][]uint64
		total := 0
		for arg := range values {
			values[arg] = interesting(r, arg)
			total += len(values[arg])
		}
		for _, name := range r.Calls {
			nr, ok := a.Number(name)
			if !ok {
				continue
			}
			for arg := range values {
				for _, v := range values[arg] {
					for range 8 {
						d := Data{Arch: a.Audit(), Nr: nr}
						for j := range d.Args {
							d.Args[j] = values[j][rng.IntN(len(values[j]))]
						}
						d.Args[arg] = v
						f(d)
					}
				}
			}
		}
	}
}

// TestProgram compares compiled programs with the rule table over the corpus,
// and demands that the corpus reaches every instruction and both ways of every
// jump: there is no dead code and no untested decision.
func TestProgram(t *testing.T) {
	for _, p := range variants() {
		for _, a := range arches {
			m := newMachine(t, p, a)
			n := 0
			corpus(p, a, func(d Data) { n++; m.check(t, d) })
			for pc, hit := range m.tracer.hit {
				code := m.tracer.prog[pc].Code
				jump := code == jeqK || code == jgeK || code == jsetK
				if hit&1 == 0 || jump && hit != 7 {
					t.Errorf("%s %s: instruction %d %+v: coverage %03b", p.Name, a, pc, m.tracer.prog[pc], hit)
				}
			}
			t.Logf("%s %s: %d instructions, %d cases", p.Name, a, len(m.tracer.prog), n)
		}
	}
}

// TestCell states by name what matters most.
func TestCell(t *testing.T) {
	c := Options{Tier: tier.C, ExecCookie: 0x1122334455667788, AllowInet: true, AllowUnix: true,
		AllowUncounted: true, AllowShared: true, AllowIPC: true}
	b := Options{Tier: tier.B, ExecCookie: c.ExecCookie, AllowInet: true, AllowUnix: true}
	noInet, noCookie, noUnix := c, c, c
	noInet.AllowInet, noCookie.ExecCookie, noUnix.AllowUnix = false, 0, false
	neither := noInet
	neither.AllowUnix = false
	const high = 0xdeadbeef << 32
	for _, tt := range []struct {
		o    Options
		call string
		args [6]uint64
		want Action
	}{
		{c, "read", [6]uint64{}, Allow},
		{c, "execve", [6]uint64{}, Allow},
		{c, "execveat", [6]uint64{5: c.ExecCookie}, Allow},
		{c, "execveat", [6]uint64{5: c.ExecCookie ^ 1}, Errno(ENOSYS)},
		{c, "execveat", [6]uint64{5: c.ExecCookie ^ 1<<63}, Errno(ENOSYS)},
		{noCookie, "execveat", [6]uint64{}, Errno(ENOSYS)},
		{c, "clone", [6]uint64{0x01200011}, Allow},                // fork
		{c, "clone", [6]uint64{0x003d0f00}, Allow},                // pthread_create
		{c, "clone", [6]uint64{0x10000011}, Errno(EPERM)},         // CLONE_NEWUSER
		{c, "clone", [6]uint64{high | 0x40000011}, Errno(EPERM)},  // CLONE_NEWNET
		{c, "clone", [6]uint64{high | 0x003d0f00}, Allow},         // the kernel drops the high half
		{c, "ioctl", [6]uint64{1: high | 0x5412}, Errno(EPERM)},   // TIOCSTI
		{c, "ioctl", [6]uint64{1: high | 0x5413}, Allow},          // TIOCGWINSZ
		{c, "ioctl", [6]uint64{1: 0xae00}, Errno(ENOTTY)},         // KVM_GET_API_VERSION
		{c, "socket", [6]uint64{1, 1 | 0o2004000}, Allow},         // SOCK_CLOEXEC | SOCK_NONBLOCK
		{c, "socket", [6]uint64{2, 1, 6}, Allow},                  //
		{c, "socket", [6]uint64{10, 2, 17}, Allow},                //
		{c, "socket", [6]uint64{2, 2, 1}, Errno(EPROTONOSUPPORT)}, // ICMP
		{c, "socket", [6]uint64{2, 3, 255}, Errno(EAFNOSUPPORT)},  // raw
		{c, "socket", [6]uint64{40, 1}, Errno(EAFNOSUPPORT)},      // vsock
		{noInet, "socket", [6]uint64{2, 1, 6}, Errno(EAFNOSUPPORT)},
		{noInet, "socket", [6]uint64{1, 1, 0}, Allow},
		{noUnix, "socket", [6]uint64{1, 1, 0}, Errno(EAFNOSUPPORT)},
		{noUnix, "socketpair", [6]uint64{1, 1, 0}, Allow},
		{noUnix, "socketpair", [6]uint64{1, 2, 0}, Errno(EAFNOSUPPORT)},
		{noUnix, "socket", [6]uint64{2, 1, 6}, Allow},
		{c, "splice", [6]uint64{}, Errno(EINVAL)},
		{c, "vmsplice", [6]uint64{}, Errno(EINVAL)},
		{c, "tee", [6]uint64{}, Errno(EINVAL)},
		{b, "socket", [6]uint64{1, 1, 0}, Errno(EAFNOSUPPORT)},
		{b, "socket", [6]uint64{2, 1, 6}, Errno(EAFNOSUPPORT)},
		{b, "socketpair", [6]uint64{1, 1}, Allow},
		{b, "socketpair", [6]uint64{1, 2}, Errno(EAFNOSUPPORT)}, // datagram
		{noUnix, "connect", [6]uint64{}, Allow},
		{noInet, "connect", [6]uint64{}, Allow},
		{neither, "socket", [6]uint64{1, 1, 0}, Errno(EAFNOSUPPORT)},
		{neither, "socketpair", [6]uint64{1, 1, 0}, Allow},
		{neither, "bind", [6]uint64{}, Errno(EPERM)},
		{c, "lsetxattr", [6]uint64{}, Errno(ENOTSUP)},
		{b, "lsetxattr", [6]uint64{}, Errno(EPERM)},
		{c, "fsetxattr", [6]uint64{}, Errno(ENOTSUP)},
		{b, "fsetxattr", [6]uint64{}, Errno(ENOTSUP)},
		{c, "fallocate", [6]uint64{3, 0, 0, 1 << 30}, Errno(ENOTSUP)},
		{c, "fallocate", [6]uint64{3, high | 1, 0, 1 << 30}, Errno(ENOTSUP)}, // FALLOC_FL_KEEP_SIZE
		{b, "fallocate", [6]uint64{3, 3, 0, 1 << 30}, Allow},                 // with PUNCH_HOLE
		{c, "mq_open", [6]uint64{}, Errno(ENOSYS)},
		{b, "mq_open", [6]uint64{}, Errno(ENOSYS)},
		{c, "shmget", [6]uint64{}, Allow},
		{b, "shmget", [6]uint64{}, Errno(ENOSYS)},
		{b, "prlimit64", [6]uint64{0, 7}, Allow},
		{b, "prlimit64", [6]uint64{high | 1, 7}, Errno(EPERM)},
		{b, "prlimit64", [6]uint64{0, 4, 0, 1}, Allow},
		{b, "prlimit64", [6]uint64{1, 4, 0, 1}, Errno(EPERM)},
		{b, "prlimit64", [6]uint64{high, high | 4, high}, Errno(0)},
		{b, "prlimit64", [6]uint64{0, 4, 1, high}, Errno(EPERM)}, // it would be told nothing
		{c, "prlimit64", [6]uint64{0, 7, 1, 1}, Allow},
		{c, "prlimit64", [6]uint64{0, 4, 0, 1}, Allow},
		{c, "prlimit64", [6]uint64{1, 0, 1, 1}, Errno(EPERM)}, // its reaper
		{c, "prlimit64", [6]uint64{0, high | 4, high}, Errno(0)},
		{c, "prlimit64", [6]uint64{1, 4, 1}, Errno(EPERM)},
		{c, "setrlimit", [6]uint64{high | 4, 1}, Errno(0)},
		{b, "setrlimit", [6]uint64{4, 1}, Errno(0)},
		{b, "setrlimit", [6]uint64{7, 1}, Allow},
		{b, "chmod", [6]uint64{1, 0o644}, Errno(EPERM)},
		{b, "fchmod", [6]uint64{1, 0o644}, Allow},
		{b, "utimensat", [6]uint64{3, 0}, Allow},
		{b, "utimensat", [6]uint64{3, 1 << 40}, Errno(EPERM)},
		{c, "chmod", [6]uint64{1, 0o1777}, Allow},
		{c, "chmod", [6]uint64{1, high | 0o2755}, Errno(EPERM)},
		{c, "openat", [6]uint64{2: 0o100, 3: 0o4755}, Errno(EPERM)},
		{c, "openat", [6]uint64{2: 0, 3: 0o4755}, Allow}, // mode is not looked at
		{c, "mknodat", [6]uint64{2: 0o010600}, Errno(EPERM)},
		{c, "mknodat", [6]uint64{2: 0o100600}, Allow},
		{c, "mknodat", [6]uint64{2: 0o104600}, Errno(EPERM)},
		{c, "personality", [6]uint64{0}, Allow},
		{c, "personality", [6]uint64{high | 0xffffffff}, Allow},
		{c, "personality", [6]uint64{8}, Errno(EPERM)}, // PER_LINUX32
		{c, "prctl", [6]uint64{1, 0}, Allow},
		{c, "prctl", [6]uint64{1, 15}, Allow},
		{b, "prctl", [6]uint64{1, 0}, Errno(EPERM)},
		{b, "prctl", [6]uint64{1, 15}, Errno(EPERM)},
		{b, "prctl", [6]uint64{1, 9}, Allow},
		{c, "prctl", [6]uint64{high | 15}, Allow},
		{c, "prctl", [6]uint64{21}, Allow},            // PR_GET_SECCOMP
		{c, "prctl", [6]uint64{22, 2}, Errno(EINVAL)}, // PR_SET_SECCOMP
		{b, "prctl", [6]uint64{22, 2}, Errno(EINVAL)},
		{c, "seccomp", [6]uint64{1}, Errno(EINVAL)}, // SECCOMP_SET_MODE_FILTER
		{b, "seccomp", [6]uint64{high | 1}, Errno(EINVAL)},
		{c, "seccomp", [6]uint64{2}, Allow},                            // SECCOMP_GET_ACTION_AVAIL
		{c, "setsockopt", [6]uint64{1: 1, 2: 26}, Errno(EPERM)},        // SO_ATTACH_FILTER
		{b, "setsockopt", [6]uint64{1: 1, 2: high | 51}, Errno(EPERM)}, // SO_ATTACH_REUSEPORT_CBPF
		{c, "sched_setscheduler", [6]uint64{1: 0x40000000}, Allow},
		{c, "sched_setscheduler", [6]uint64{1: 0x40000001}, Errno(EPERM)},
		{c, "clone3", [6]uint64{}, Errno(ENOSYS)},
		{c, "openat2", [6]uint64{}, Errno(ENOSYS)},
		{c, "mount", [6]uint64{}, Errno(EPERM)},
	} {
		for _, a := range arches {
			nr, ok := a.Number(tt.call)
			if !ok {
				continue
			}
			got := newMachine(t, Cell(tt.o), a).check(t, Data{Arch: a.Audit(), Nr: nr, Args: tt.args})
			if got != tt.want {
				t.Errorf("%s %s %s%x: got %s, want %s", a, Cell(tt.o).Name, tt.call, tt.args, got, tt.want)
			}
		}
	}
}

func TestOtherArchKills(t *testing.T) {
	for _, a := range arches {
		m := newMachine(t, Cell(Options{Tier: tier.C}), a)
		for _, arch := range []uint32{0x40000003 /* i386 */, 0x40000028 /* arm */, a.Audit() ^ 1, a.Audit() & 0xffff} {
			for nr := range uint32(600) {
				if got := m.check(t, Data{Arch: arch, Nr: nr}); got != KillProcess {
					t.Fatalf("%s: arch %#x nr %d: %s", a, arch, nr, got)
				}
			}
		}
	}
	m := newMachine(t, Cell(Options{Tier: tier.C}), AMD64)
	for nr := range uint32(600) {
		if got := m.check(t, Data{Arch: AMD64.Audit(), Nr: nr | x32Bit}); got != KillProcess {
			t.Fatalf("x32 nr %d: %s", nr, got)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	ok := allow("x", "read")
	base := Policy{Name: "p", Default: Errno(EPERM), Unknown: Errno(ENOSYS)}
	with := func(rs ...Rule) Policy { p := base; p.Rules = rs; return p }
	clause := func(c Cond) Policy {
		return with(Rule{Calls: []string{"read"}, Else: Allow, Why: "x", Clauses: []Clause{{When: []Cond{c}, Then: Allow}}})
	}
	for name, tt := range map[string]struct {
		p Policy
		a Arch
	}{
		"no arch":       {with(ok), 0},
		"no default":    {Policy{Unknown: Errno(1)}, AMD64},
		"no unknown":    {Policy{Default: Errno(1)}, AMD64},
		"twice":         {with(ok, ok), AMD64},
		"misspelt":      {with(allow("x", "raed")), AMD64},
		"no reason":     {with(Rule{Calls: []string{"read"}, Else: Allow}), AMD64},
		"no action":     {with(Rule{Calls: []string{"read"}, Why: "x"}), AMD64},
		"bad argument":  {clause(is(6, 1)), AMD64},
		"negative":      {clause(is(-1, 1)), AMD64},
		"no values":     {clause(is(0)), AMD64},
		"no mask":       {clause(Cond{Op: AnyBit}), AMD64},
		"wide mask":     {clause(Cond{Wide: true, Mask: 1, Values: []uint64{1}}), AMD64},
		"wide set":      {clause(Cond{Wide: true, Values: []uint64{1, 2}}), AMD64},
		"never matches": {clause(is(0, 1<<32)), AMD64},
		"masked out":    {clause(masked(0, 1, 2)), AMD64},
		"empty clause":  {with(Rule{Calls: []string{"read"}, Else: Allow, Why: "x", Clauses: []Clause{{Then: Allow}}}), AMD64},
	} {
		if f, err := Compile(tt.p, tt.a); err == nil {
			t.Errorf("%s: compiled to %d instructions", name, f.Len())
		}
	}
}

// TestStable holds Compile to one output for one input: the digest is evidence.
func TestStable(t *testing.T) {
	p := Cell(Options{Tier: tier.C, ExecCookie: 7})
	first, err := Compile(p, AMD64)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := Compile(p, AMD64)
		if err != nil || again.Digest() != first.Digest() || len(again.Bytes()) != 8*again.Len() {
			t.Fatalf("digest %s, then %s (%v)", first.Digest(), again.Digest(), err)
		}
	}
	if other, _ := Compile(Cell(Options{Tier: tier.C, ExecCookie: 8}), AMD64); other.Digest() == first.Digest() {
		t.Error("another cookie, the same digest")
	}
}

// TestForCell: the programs of two palyra-cells differ in the two halves of the cookie
// and in nothing else, and the digest of their policy is that of the program without it.
func TestForCell(t *testing.T) {
	const one, two = 0x9e3779b97f4a7c15, ^uint64(0x9e3779b97f4a7c15)
	for _, a := range arches {
		for _, o := range []Options{{Tier: tier.C}, {Tier: tier.C, AllowUnix: true}, {Tier: tier.C, NoPair: true, AllowShared: true, AllowIPC: true},
			{Tier: tier.B}, {Tier: tier.B, ReadOnly: true, AllowShared: true}} {
			plain, err := Compile(Cell(o), a)
			if err != nil {
				t.Fatal(err)
			}
			o.ExecCookie = one
			f, policy, err := ForCell(o, a)
			if err != nil || policy != plain.Digest() {
				t.Errorf("%s %+v: policy %s, %v, want %s", a, o, policy, err, plain.Digest())
			}
			o.ExecCookie = two
			other, _, err := ForCell(o, a)
			if err != nil || other.Len() != f.Len() {
				t.Fatalf("%s %+v: %d instructions, %v, want %d", a, o, other.Len(), err, f.Len())
			}
			var differ []uint32
			for i, x := range f.Instrs() {
				if y := other.Instrs()[i]; x != y {
					differ = append(differ, x.K)
					x.K = y.K
					if x != y {
						t.Errorf("%s %+v: instruction %d differs in more than its constant", a, o, i)
					}
				}
			}
			slices.Sort(differ)
			want := []uint32{one & 0xffffffff, one >> 32}
			if !o.AllowUncounted { // it opens the rule for close_range, too
				want = []uint32{want[0], want[0], want[1], want[1]}
			}
			if !slices.Equal(differ, want) {
				t.Errorf("%s %+v: %x differ, want %x", a, o, differ, want)
			}
		}
	}
	if _, _, err := ForCell(Options{Tier: tier.C, ExecCookie: 1}, 0); err == nil {
		t.Error("a filter for no architecture")
	}
}
