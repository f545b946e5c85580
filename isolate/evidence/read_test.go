package evidence

import (
	"slices"
	"strings"
	"testing"
)

const status = `Name:	a b:Uid:	7
Umask:	0022
State:	S (sleeping)
Uid:	65534	65534	65534	65534
Gid:	1000	1000	1000	1000
Groups:	5 6 
CapInh:	0000000000000000
CapPrm:	0000000000000000
CapEff:	0000000000000000
CapBnd:	000001ffffffffff
CapAmb:	0000000000000000
NoNewPrivs:	1
Seccomp:	2
Seccomp_filters:	3
`

func TestParseStatus(t *testing.T) {
	p, err := parseStatus([]byte(status))
	if err != nil {
		t.Fatal(err)
	}
	if p.HostUID != 65534 || p.HostGID != 1000 || !slices.Equal(p.Groups, []uint32{5, 6}) ||
		p.CapBnd != "000001ffffffffff" || p.CapEff != "0000000000000000" || p.NoNewPrivs != 1 || p.Seccomp != 2 || p.Filters != 3 {
		t.Errorf("got %+v", p)
	}
	for name, bad := range map[string]string{
		"saved uid":   strings.Replace(status, "65534	65534	65534	65534", "65534	65534	0	65534", 1),
		"fs gid":      strings.Replace(status, "1000	1000	1000	1000", "1000	1000	1000	0", 1),
		"no nnp":      strings.Replace(status, "NoNewPrivs:	1\n", "", 1),
		"no filters":  strings.Replace(status, "Seccomp_filters:	3\n", "", 1),
		"short caps":  strings.Replace(status, "000001ffffffffff", "1ff", 1),
		"odd caps":    strings.Replace(status, "000001ffffffffff", "000001fffffffffg", 1),
		"groups":      strings.Replace(status, "5 6", "5 x", 1),
		"seccomp":     strings.Replace(status, "Seccomp:	2", "Seccomp:	two", 1),
		"empty":       "",
		"uid too big": strings.ReplaceAll(status, "65534", "4294967296"),
	} {
		if p, err := parseStatus([]byte(bad)); err == nil {
			t.Errorf("%s: got %+v", name, p)
		}
	}
	// The first line of a name wins, so a process cannot append its own.
	if p, err := parseStatus([]byte(status + "Seccomp:	0\nNoNewPrivs:	0\n")); err != nil || p.Seccomp != 2 || p.NoNewPrivs != 1 {
		t.Errorf("got %+v, %v", p, err)
	}
}

func TestParseStat(t *testing.T) {
	for _, tt := range []struct {
		in                string
		pid, session, tty int
		ok                bool
	}{
		{"42 (true) S 1 42 42 0 -1 4194304 0", 42, 42, 0, true},
		{"42 (a) b (c) 9 9 9) S 1 2 3 34816 -1", 42, 3, 34816, true},
		{"42 (x) S 1 2", 0, 0, 0, false},
		{"42 x) S 1 2 3 4", 0, 0, 0, false},
		{") 42 (", 0, 0, 0, false},
		{"a (b) S 1 2 3 4", 0, 0, 0, false},
		{"", 0, 0, 0, false},
	} {
		pid, session, tty, err := parseStat([]byte(tt.in))
		if pid != tt.pid || session != tt.session || tty != tt.tty || (err == nil) != tt.ok {
			t.Errorf("parseStat(%q) = %d, %d, %d, %v", tt.in, pid, session, tty, err)
		}
	}
}

const limits = `Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              10                   11                   seconds   
Max file size             1048576              1048576              bytes     
Max data size             unlimited            unlimited            bytes     
Max stack size            8388608              unlimited            bytes     
Max core file size        0                    0                    bytes     
Max resident set          unlimited            unlimited            bytes     
Max processes             64                   64                   processes 
Max open files            256                  256                  files     
Max locked memory         65536                65536                bytes     
Max address space         unlimited            unlimited            bytes     
Max file locks            unlimited            unlimited            locks     
Max pending signals       96365                96365                signals   
Max msgqueue size         819200               819200               bytes     
Max nice priority         0                    0                    
Max realtime priority     0                    0                    
Max realtime timeout      unlimited            unlimited            us        
`

func TestParseLimits(t *testing.T) {
	l, err := parseLimits([]byte(limits))
	if err != nil {
		t.Fatal(err)
	}
	if l.Soft["cpu"] != 10 || l.Hard["cpu"] != 11 || l.Soft["stack"] != 8388608 || l.Hard["stack"] != -1 ||
		l.Soft["core"] != 0 || l.Soft["nproc"] != 64 || l.Hard["nofile"] != 256 || len(l.Soft) != 16 {
		t.Errorf("got %+v", l)
	}
	for name, bad := range map[string]string{
		"one missing": strings.Replace(limits, "Max processes", "Max progress.", 1),
		"no number":   strings.Replace(limits, "8388608  ", "eightmeg ", 1),
		"negative":    strings.Replace(limits, "8388608", "-8388608", 1),
		"too large":   strings.Replace(limits, "8388608           ", "18446744073709551615", 1),
		"empty":       "",
	} {
		if l, err := parseLimits([]byte(bad)); err == nil {
			t.Errorf("%s: got %+v", name, l)
		}
	}
}

const mountTable = `22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
23 22 0:21 /home/user/secret /workspace rw,nosuid,nodev master:1 shared:7 - ext4 /dev/vda rw
24 22 0:22 / /tmp\040x rw,nosuid - tmpfs tmpfs rw,size=65536k,nr_inodes=1024,mode=700,uid=1000
25 22 0:23 / /proc rw,nosuid,nodev,noexec,relatime master:12 propagate_from:3 - proc proc rw,hidepid=invisible,subset=pid
26 22 0:24 / /usr ro,nodev,idmapped unbindable - ext4 /dev/with - dash ro,discard
`

func TestParseMountinfo(t *testing.T) {
	m, err := parseMountinfo([]byte(mountTable))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/ rw,relatime ext4 shared",
		"/workspace rw,nosuid,nodev ext4 shared",
		`/tmp\040x rw,nosuid tmpfs private size=65536k,nr_inodes=1024`,
		"/proc rw,nosuid,nodev,noexec,relatime proc slave hidepid=invisible,subset=pid",
		"/usr ro,nodev,idmapped ext4 unbindable ro",
	}
	if !slices.Equal(m.Table, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(m.Table, "\n"), strings.Join(want, "\n"))
	}
	if m.Digest.IsZero() || strings.Contains(strings.Join(m.Table, ""), "secret") {
		t.Error("no digest, or a path of the host")
	}
	// The same mounts under other numbers, on another host.
	other := strings.NewReplacer("22 ", "122 ", "254:0", "8:1", "0:21", "0:99", "shared:1", "shared:77", "/home/user", "/srv", "/dev/vda", "/dev/sdb").Replace(mountTable)
	if o, err := parseMountinfo([]byte(other)); err != nil || o.Digest != m.Digest {
		t.Errorf("digest depends on the host: %v %q", err, o.Table)
	}
	for _, bad := range []string{"", "22 1 254:0 / / rw", "22 1 254:0 / / rw - ext4", "\n", "a - b c d"} {
		if m, err := parseMountinfo([]byte(bad)); err == nil {
			t.Errorf("%q: got %q", bad, m.Table)
		}
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"/usr/bin": "/usr/bin", "a\x1b[2J": `a\033[2J`, "\xff\u202e": `\377\342\200\256`, `a\040b`: `a\040b`, "": "",
	} {
		if got := string(plain(nil, []byte(in))); got != want {
			t.Errorf("plain(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestParseGroup(t *testing.T) {
	for in, want := range map[string]string{
		"0::/\n": "/", "0::/a/b\n": "/a/b", "4:memory:/x\n1:name=systemd:/y\n0::/z\n": "/z", "0::/../c": "/../c", "0::/a b\n": `/a\040b`,
	} {
		if got, err := parseGroup([]byte(in)); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "4:memory:/x\n", "0::\n", "10::/a\n"} {
		if got, err := parseGroup([]byte(bad)); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
	}
}

func TestNetworkTables(t *testing.T) {
	const trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /8 link UNICAST\nLocal:\n     |-- 127.0.0.0\n        /8 host LOCAL\n" +
		"     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 127.255.255.255\n        /32 link BROADCAST\n     |-- 198.18.0.0\n        /15 host LOCAL\n"
	const zero = "00000000000000000000000000000000"
	var n networkTables
	for _, f := range []struct {
		parse func([]byte) error
		text  string
	}{
		{n.interfaces, "Inter-|   Receive\n face |bytes\n    lo:       0       0\n  eth0: 1 2\n"},
		{n.addresses, trie},
		{n.addresses6, "00000000000000000000000000000001 01 80 10 80       lo\nfe800000000000000000000000000001 02 40 20 80     eth0\n"},
		{n.routes, "Iface\tDestination\neth0\t00000000\nlo\t0000007F\n"},
		{n.routes6, zero + " 00 0 00 0 ffffffff 1 0 00200200       lo\n0 00 0 00 0 00000001 1 0 00200001     eth0\n\n" +
			"fd70616c797200000000000000000000 40 0 00 0 00000400 1 0 80000001       lo\n20010db8000000000000000000000007 80 0 00 0 00000400 1 0 80000001       lo\n"},
	} {
		if err := f.parse([]byte(f.text)); err != nil {
			t.Errorf("%q: %v", f.text, err)
		}
	}
	if want := []string{"lo", "eth0"}; !slices.Equal(n.names, want) {
		t.Errorf("interfaces %q, want %q", n.names, want)
	}
	if want := []string{"127.0.0.1", "198.18.0.0/15", "::1", "fe800000000000000000000000000001", "fd70:616c:7972::/64", "2001:db8::7"}; !slices.Equal(n.local, want) || n.out != 3 {
		t.Errorf("addresses %q, want %q; %d routes out, want 3", n.local, want, n.out)
	}
	for _, bad := range []string{"lo\n", "00000000000000000000000000000001\n", "1 01 80 10 80 lo\n"} {
		if err := n.addresses6([]byte(bad)); err == nil {
			t.Errorf("addresses %q: no error", bad)
		}
	}
	for _, bad := range []string{"a lo\n", zero + " 00 0 00 0 0 1 0 x       lo\n", "00 80 0 00 0 0 1 0 80000001       lo\n", zero + " 81 0 00 0 0 1 0 80000001       lo\n"} {
		if err := n.routes6([]byte(bad)); err == nil {
			t.Errorf("routes %q: no error", bad)
		}
	}
	if err := new(networkTables).interfaces([]byte("Inter-|\n face |\n")); err == nil {
		t.Error("no interface, and no error")
	}
}

func TestTarget(t *testing.T) {
	for in, want := range map[string]string{
		"pipe:[123]": "pipe", "socket:[9]": "socket", "/memfd:exec (deleted)": "memfd:exec",
		"anon_inode:[eventfd]": "anon_inode:[eventfd]", "/usr/bin/true": "/usr/bin/true", "/tmp/x (deleted)": `/tmp/x\040(deleted)`,
	} {
		if got := string(target(nil, []byte(in))); got != want {
			t.Errorf("target(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestFresh(t *testing.T) {
	got := Fresh(map[string]uint64{"user": 1, "net": 2, "pid": 3, "time": 4}, map[string]uint64{"user": 9, "net": 2, "pid": 8})
	if !slices.Equal(got, []string{"pid", "user"}) {
		t.Errorf("got %q", got)
	}
	if Fresh(nil, nil) == nil {
		t.Error("nil becomes null in JSON")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{status, limits, "42 (a) b (c) 9) S 1 2 3 4 5", "net:[4026531840]", "flags:\t0100002\n",
		"24 22 0:22 / /tmp\\040x rw,nosuid master:1 - tmpfs tmpfs rw,size=1k\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := parseStatus(b); err == nil && (p.CapEff == "" || p.Groups == nil) {
			t.Errorf("accepted %q as %+v", b, p)
		}
		parseStat(b)
		parseFlags(b)
		target(nil, b)
		if n, err := parseNamespace(b); err == nil && n == 0 {
			t.Errorf("accepted %q", b)
		}
		if l, err := parseLimits(b); err == nil && (len(l.Soft) != 16 || len(l.Hard) != 16) {
			t.Errorf("accepted %q as %+v", b, l)
		}
		if m, err := parseMountinfo(b); err == nil {
			for _, line := range m.Table {
				for i := range len(line) {
					if line[i] < ' ' || line[i] > '~' {
						t.Errorf("mount line %q is not plain", line)
					}
				}
			}
		}
	})
}
