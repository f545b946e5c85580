package serve

import (
	"os"
	"testing"

	"palyra/isolate/internal/steps"
)

// TestCoreDegraded: only a pipe that the limit doesn't forbid, and a socket, are degradations.
func TestCoreDegraded(t *testing.T) {
	for _, tt := range []struct {
		pattern string
		err     error
		core    uint64
		want    int
	}{
		{"core\n", nil, 0, 0}, {"\n", nil, steps.NoCore, 0}, {"/var/crash/@%p|\n", nil, 0, 0},
		{"|/usr/share/apport/apport %p\n", nil, steps.NoCore, 0}, {"|/usr/share/apport/apport %p\n", nil, 0, 1},
		{"@/run/core\n", nil, steps.NoCore, 1}, {"@@/run/core\n", nil, 0, 1}, {"", os.ErrPermission, steps.NoCore, 1},
	} {
		if got := handled([]byte(tt.pattern), tt.err, tt.core); len(got) != tt.want {
			t.Errorf("%q, %v, limit %d: %q, want %d degradations", tt.pattern, tt.err, tt.core, got, tt.want)
		}
	}
}
