package sys

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnshaken(t *testing.T) {
	for _, want := range []error{nil, unix.ENOENT} {
		calls := 0
		fd, err := unshaken(func() (int, error) {
			if calls++; calls < 4 {
				return -1, unix.EINTR
			}
			return 7, want
		})
		if fd != 7 || err != want || calls != 4 {
			t.Errorf("%d, %v after %d calls, want 7, %v after 4", fd, err, calls, want)
		}
	}
}
