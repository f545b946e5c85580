package console

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAppWindow: palyra console open --app becomes the browser that it finds, with the console in a
// window of its own, and says where none is found or there is no desktop.
func TestAppWindow(t *testing.T) {
	h := newHouse(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "chromium"), []byte("#!/bin/sh\necho became \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		path, display string
		status        int
		says          []string
	}{
		{dir, ":7", 0, []string{"became --app=" + h.url + "/enter?code="}},
		{"/nonexistent", ":7", 7, []string{"no Chromium, Chrome or Edge", "hint: install one, such as chromium"}},
		{dir, "", 7, []string{"there is no desktop", "hint: palyra console open --print"}},
	} {
		cmd := h.command("console", "open", "--app")
		cmd.Env = []string{"PATH=" + tc.path, "DISPLAY=" + tc.display, "HOME=" + dir}
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != tc.status {
			t.Errorf("PATH=%s DISPLAY=%s: status %d, want %d\n%s", tc.path, tc.display, cmd.ProcessState.ExitCode(), tc.status, out)
		}
		for _, s := range tc.says {
			if !strings.Contains(string(out), s) {
				t.Errorf("PATH=%s DISPLAY=%s: no %q in %s", tc.path, tc.display, s, out)
			}
		}
	}
	cmd := h.command("console", "open", "--qr")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no other machine reaches") || !strings.Contains(string(out), "hint: listen.http") || strings.Contains(string(out), "code=") {
		t.Errorf("a QR code of localhost: %v\n%s", err, out)
	}
}
