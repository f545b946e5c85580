package kernel

import (
	"os"
	"strings"
)

// bootID returns the random id of this boot (random(4)), "" if /proc doesn't have it.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
