package pin

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
)

// Place returns where h lies in its file system, whatever of that is mounted where:
// the root of its mount, and the way from there. Two folders of one device lie in
// each other if their places do. It reads the mounts (proc_pid_mountinfo(5)), which
// is slow; mounts that are none of this process have no place.
func (h *Handle) Place() (string, error) {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(h.held.fd()))
	if err != nil {
		return "", err
	}
	_, id, _ := strings.Cut(string(info), "mnt_id:\t")
	id, _, _ = strings.Cut(id, "\n")
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	where, err := placeIn(string(mounts), id, h.Path)
	if err != nil {
		return "", fmt.Errorf("look up mount of %q: %w", h.Path, err)
	}
	return where, nil
}

// placeIn looks up mount id, on which name lies, in the text of mountinfo.
func placeIn(mounts, id, name string) (string, error) {
	for l := range strings.Lines(mounts) {
		f := strings.Fields(l) // id, parent, device, root, mount point, …
		if len(f) < 5 || f[0] != id {
			continue
		}
		root, at := unescape(f[3]), unescape(f[4])
		rel, ok := strings.CutPrefix(name, strings.TrimSuffix(at, "/"))
		if !ok || rel != "" && rel[0] != '/' {
			return "", fmt.Errorf("it is not beneath %q", at)
		}
		return path.Join(root, rel), nil
	}
	return "", errors.New("not listed")
}

// unescape undoes the \ooo of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
