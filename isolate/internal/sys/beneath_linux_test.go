package sys

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOpenBeneathKeepsTimes: reading a folder of the caller's own leaves no time of access
// that a program could take as a sign of when it is looked at. os.ReadDir does.
func TestOpenBeneathKeepsTimes(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/sub", 0o700); err != nil {
		t.Fatal(err)
	}
	read := func(look func() error) bool {
		old := time.Unix(1, 0)
		if err := os.Chtimes(dir, old, old); err != nil { // older than relatime's day
			t.Fatal(err)
		}
		if err := look(); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			t.Fatal(err)
		}
		return st.Atim.Sec != old.Unix()
	}
	top, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(top)
	if read(func() error {
		fd, err := OpenBeneath(top, ".")
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = NextNames(fd, make([]byte, 4096))
		return err
	}) {
		t.Error("the time of access tells that the folder was read")
	}
	if !read(func() error { _, err := os.ReadDir(dir); return err }) {
		t.Skip("the file system keeps no times of access")
	}
}
