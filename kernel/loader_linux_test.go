package kernel

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel/capsule"
)

// withLoader is a dynamic program of this host that names another loader.
func withLoader(t *testing.T, raw string) string {
	t.Helper()
	b := []byte(trueBinary(t))
	le := binary.LittleEndian
	at, each, count := le.Uint64(b[32:]), int(le.Uint16(b[54:])), int(le.Uint16(b[56:]))
	for i := range count {
		h := b[int(at)+i*each:]
		if elf.ProgType(le.Uint32(h)) != elf.PT_INTERP {
			continue
		}
		le.PutUint64(h[8:], uint64(len(b)))
		le.PutUint64(h[32:], uint64(len(raw)))
		le.PutUint64(h[40:], uint64(len(raw)))
		return string(append(b, raw...))
	}
	t.Fatal("/bin/true names no loader")
	return ""
}

// TestLoader: the loader that the kernel starts in a program's place must meet the rules for
// system programs, whichever program names it.
func TestLoader(t *testing.T) {
	host, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	real := ""
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			p.ReadAt(b, 0)
			real = strings.TrimRight(string(b), "\x00")
		}
	}
	f.Close()
	ws := t.TempDir()
	put(t, ws+"/ld.so", string(host), 0o755)
	os.Symlink(real, ws+"/link.so")
	const others = "put another file there, or not root's alone"
	for _, c := range []struct{ raw, reason string }{
		{real + "\x00", ""},
		{"/workspace/ld.so\x00", others},
		{"/workspace/link.so\x00", others},
		{"/workspace/../workspace/ld.so\x00", others},
		{"/usr/../workspace/ld.so\x00", others},
		{"//workspace//ld.so\x00", others},
		{ws + "/ld.so\x00", others},
		{"ld.so\x00", others},
		{"./ld.so\x00", others},
		{"/tmp/ld.so\x00", others},
		{"/dev/shm/ld.so\x00", others},
		{"/dev/fd/3\x00", others},
		{"/proc/self/fd/3\x00", others},
		{"/proc/self/cwd/ld.so\x00", others},
		{"/usr/lib/palyra-none.so\x00", "program_not_executable: find loader"},
		{"/etc/passwd\x00", "program_not_executable"},
		{"/usr\x00", others},
		{"/workspace/ld.so", "program_not_executable: does not end with its only NUL"},
		{real + "\x00/workspace/ld.so\x00", "program_not_executable: does not end with its only NUL"},
		{"/\xff\x00", "invalid_input: loader: not UTF-8"},
	} {
		prog := put(t, ws+"/prog", withLoader(t, c.raw), 0o755)
		script := put(t, ws+"/script", "#!/workspace/prog\n", 0o755)
		for _, argv := range [][]string{{"./prog"}, {prog}, {"./script"}, {script, "x"}} {
			p := proposal(argv...)
			p.Workspace = ws
			if argv[0][0] == '/' {
				p.Workspace = "" // as any other program of the host
				if argv[0] == script {
					continue
				}
			}
			s, err := sealIn(t, p, nil)
			if c.reason == others {
				if !says(err, "program_not_executable: put another file there") && !says(err, "program_not_executable: not root's alone") {
					t.Errorf("%q by %q: got %v, want a loader that others can replace", c.raw, argv, err)
				}
			} else if !says(err, c.reason) {
				t.Errorf("%q by %q: got %v, want %q", c.raw, argv, err, c.reason)
			}
			if err != nil {
				continue
			}
			l := s.capsule.Loader
			if l == nil || l.Pinned != capsule.PinnedSystem || canon.Sum(bytesOf(t, real)) != l.Digest {
				t.Errorf("%q: loader %+v", argv, l)
			}
		}
	}
	if s := mustSeal(t, proposal("true")); s.capsule.Loader == nil || s.capsule.Loader.Digest != canon.Sum(bytesOf(t, real)) {
		t.Errorf("of a program of the system: %+v", s.capsule.Loader)
	}
}

func bytesOf(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLoaderIsChecked: a loader that was replaced since it was hashed isn't used.
func TestLoaderIsChecked(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a file of the system")
	}
	dir, err := os.MkdirTemp("/", "kernel-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put(t, dir+"/ld.so", trueBinary(t), 0o755)
	prog := put(t, t.TempDir()+"/prog", withLoader(t, dir+"/ld.so\x00"), 0o755)
	for name, tamper := range map[string]func() error{
		"rewritten": func() error { return os.WriteFile(dir+"/ld.so", []byte(trueBinary(t)+"x"), 0o755) },
		"replaced":  func() error { return os.Rename(put(t, dir+"/new", trueBinary(t), 0o755), dir+"/ld.so") },
		"removed":   func() error { return os.Remove(dir + "/ld.so") },
	} {
		put(t, dir+"/ld.so", trueBinary(t), 0o755)
		s := mustSeal(t, proposal(prog))
		if err := s.recheck(); err != nil {
			t.Fatal(err)
		}
		if err := tamper(); err != nil {
			t.Fatal(err)
		}
		if err := s.recheck(); fault.ReasonOf(err) != "changed" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// withPlaces is a dynamic program, of headers only, that names places for libraries by the
// given tag.
func withPlaces(loader string, tag elf.DynTag, places string) string {
	const header, each, count = 64, 56, 3
	le, b := binary.LittleEndian, []byte(nil)
	segment := func(kind elf.ProgType, at, size int) {
		h := make([]byte, each)
		le.PutUint32(h, uint32(kind))
		for _, i := range []int{8, 16} {
			le.PutUint64(h[i:], uint64(at))
		}
		for _, i := range []int{32, 40} {
			le.PutUint64(h[i:], uint64(size))
		}
		b = append(b, h...)
	}
	loader, places = loader+"\x00", "\x00"+places+"\x00"
	table := header + count*each + len(loader)
	dynamic := table + len(places)
	end := dynamic + 4*16
	segment(elf.PT_INTERP, header+count*each, len(loader))
	segment(elf.PT_DYNAMIC, dynamic, 4*16)
	segment(elf.PT_LOAD, 0, end)
	b = append(append(b, loader...), places...)
	for _, v := range []uint64{uint64(elf.DT_STRTAB), uint64(table), uint64(elf.DT_STRSZ), uint64(len(places)), uint64(tag), 1, 0, 0} {
		b = le.AppendUint64(b, v)
	}
	head := make([]byte, header)
	copy(head, "\x7fELF\x02\x01\x01")
	le.PutUint16(head[16:], uint16(elf.ET_EXEC))
	le.PutUint16(head[18:], map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH])
	le.PutUint64(head[32:], header)
	le.PutUint16(head[54:], each)
	le.PutUint16(head[56:], count)
	return string(append(head, b...))
}

// shallowLink is a link in a folder of the system to a folder that is less deep.
func shallowLink(t *testing.T) (found string) {
	t.Helper()
	filepath.WalkDir("/usr", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return nil
		}
		to, err := filepath.EvalSymlinks(name)
		if err != nil || strings.Count(to, "/") >= strings.Count(name, "/") {
			return nil
		}
		if fi, err := os.Stat(to); err != nil || !fi.IsDir() {
			return nil
		}
		found = name
		return fs.SkipAll
	})
	if found == "" {
		t.Fatal("no folder of /usr has a link to a folder that is less deep")
	}
	return found
}

// TestLongLibraries: the expanded size of places for libraries is checked before they are
// expanded.
func TestLongLibraries(t *testing.T) {
	loader := mustSeal(t, proposal("true")).capsule.Loader.Path
	ws := t.TempDir()
	var many strings.Builder
	for i := range 3500 {
		fmt.Fprintf(&many, "/usr/lib/%d/../:", i)
	}
	var dots strings.Builder // one place, spelled in many ways
	for i := range 30 {
		fmt.Fprintf(&dots, "$ORIGIN%s%s/l:", strings.Repeat("/.", i), strings.Repeat("//.", 600))
	}
	for places, reason := range map[string]string{
		strings.Repeat("$ORIGIN", 100):          "",
		strings.Repeat("$ORIGIN", 9000):         "program_not_executable: a place for libraries",
		strings.Repeat("x", maxPath+1):          "program_not_executable: a place for libraries",
		strings.Repeat("/usr/lib/none/../:", 3): "",
		dots.String():                           "too_large: elements of paths",
		many.String():                           "too_large: elements of paths",
	} {
		put(t, ws+"/prog", withPlaces(loader, elf.DT_RUNPATH, places), 0o755)
		p := proposal("./prog")
		p.Workspace = ws
		if _, err := sealIn(t, p, nil); !says(err, reason) {
			t.Errorf("%.20s (%d bytes): %v, want %q", places, len(places), err, reason)
		}
	}
}

// TestLibraries: places in the workspace, and others where the loader would look for code, are
// listed; the system's are not.
func TestLibraries(t *testing.T) {
	loader := mustSeal(t, proposal("true")).capsule.Loader.Path
	ws := t.TempDir()
	// ".." after a link leads from the link's target, not from the link.
	link, up := shallowLink(t), ""
	to, err := filepath.EvalSymlinks(link)
	if err != nil {
		t.Fatal(err)
	}
	up = link + strings.Repeat("/..", strings.Count(to, "/"))
	for _, c := range []struct {
		tag    elf.DynTag
		places string
		want   []string
	}{
		{elf.DT_NEEDED, "libc.so.6", nil},
		{elf.DT_RUNPATH, "/usr/lib:/usr/lib/none:/usr/lib/$LIB", nil},
		{elf.DT_RUNPATH, "$ORIGIN/lib", []string{"/workspace/lib"}},
		{elf.DT_RUNPATH, "$ORIGINX/lib", []string{"/workspace/$ORIGINX/lib"}},
		{elf.DT_RUNPATH, "${ORIGIN}/../lib", nil}, // /lib, from the workspace as well as from the root
		{elf.DT_RUNPATH, "$ORIGIN/../workspace/l", []string{"/workspace/l"}},
		{elf.DT_RUNPATH, up + "/workspace/lib", []string{"/workspace/lib"}},
		{elf.DT_RUNPATH, "/usr/bin/../lib:/usr/none/../lib", nil},
		{elf.DT_RUNPATH, "/usr/$LIB/../../../workspace/lib", []string{"/usr/$LIB/../../../workspace/lib"}},
		{elf.DT_RUNPATH, "/workspace/sub/../../lib", []string{"/workspace/sub/../../lib"}},
		{elf.DT_RPATH, "/tmp/x::rel", []string{"/tmp/x", "/workspace", "/workspace/rel"}},
		{elf.DT_RPATH, "/workspace/lib:/usr/lib", []string{"/workspace/lib"}},
		{elf.DT_RUNPATH, ws + "/lib", []string{ws + "/lib"}},
		{elf.DT_AUDIT, "/workspace/audit.so", []string{"/workspace/audit.so"}},
		{elf.DT_DEPAUDIT, "audit.so", []string{"/workspace/audit.so"}},
		{elf.DT_NEEDED, "./lib.so", []string{"/workspace/lib.so"}},
		{elf.DT_AUXILIARY, "/dev/shm/lib.so", []string{"/dev/shm/lib.so"}},
		{elf.DT_FILTER, "/proc/self/cwd/lib.so", []string{"/proc/self/cwd/lib.so"}},
	} {
		put(t, ws+"/prog", withPlaces(loader, c.tag, c.places), 0o755)
		p := proposal("./prog", "lib")
		p.Workspace = ws
		s := mustSeal(t, p)
		var got []string
		for _, u := range s.capsule.Unpinned {
			if u.Kind == capsule.KindLibrary {
				got = append(got, u.Path)
			}
		}
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%v %s: got %q, want %q", c.tag, c.places, got, c.want)
		}
		if err := s.holdOperands(); err != nil {
			t.Errorf("%s: %v", c.places, err)
		}
		q := question(&Caller{Principal: localUser()}, s, p)
		if slices.Contains(q.Context.Unpinned, capsule.KindLibrary) != (c.want != nil) {
			t.Errorf("%s: policy sees %q", c.places, q.Context.Unpinned)
		}
		card := approval.Card(cardOf(s, policy.Decision{}, policy.Default(), "", 0))
		for _, place := range c.want {
			if !strings.Contains(card, `NOT HELD    libraries from "`+place+`"`) {
				t.Errorf("%s: the card does not say it:\n%s", c.places, card)
			}
		}
	}
	// They are listed even without a workspace to put them into.
	s := mustSeal(t, proposal(put(t, ws+"/alone", withPlaces(loader, elf.DT_RUNPATH, "/tmp/lib"), 0o755)))
	if got := fmt.Sprint(s.capsule.Unpinned); got != "[{/tmp/lib library}]" {
		t.Errorf("got %s", got)
	}
	if _, err := capsule.Parse(s.bytes); err != nil {
		t.Error(err)
	}
	// A program that names many would fill the card.
	var many []string
	for i := range maxLibraries + 1 {
		many = append(many, fmt.Sprintf("/tmp/%d", i))
	}
	prog := put(t, ws+"/many", withPlaces(loader, elf.DT_RUNPATH, strings.Join(many, ":")), 0o755)
	if _, err := sealIn(t, proposal(prog), nil); !says(err, "program_not_executable: names more than 64 places") {
		t.Errorf("many: %v", err)
	}
}
