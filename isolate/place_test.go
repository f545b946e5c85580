package isolate

import (
	"strings"
	"testing"
)

func TestCheckPlace(t *testing.T) {
	for at, want := range map[string]string{
		"/home/alice/proj": "", "/root": "", "/work": "", "/var/tmp/a b\n": "", "/tmpfoo/x": "", "/usrlocal": "", "/srv/usr": "", "/run/user/1000/x": "",
		"/": "root directory", "": "plain", "home": "plain", "/home/": "plain", "/home/../usr": "plain", "/home//x": "plain", "/a\x00b": "plain",
		"/usr": "/usr of its own", "/usr/local/src/x": "/usr of its own", "/tmp/x": "/tmp of its own", "/proc/self/cwd": "/proc of its own", "/dev/shm/x": "/dev of its own",
		"/sys/x": "/sys of its own", "/etc": "/etc of its own", "/workspace/x": "/workspace of its own", "/bin": "of its own", "/lib64/x": "of its own",
		"/" + strings.Repeat("x/", maxPlace/2) + "x": "bytes",
	} {
		if err := CheckPlace(at); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", at, err, want)
		}
	}
}
