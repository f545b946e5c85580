package kernel

import (
	"os"
	"strings"
)

// bootID is the random id of this boot (random(4)), "" if /proc does not say.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
