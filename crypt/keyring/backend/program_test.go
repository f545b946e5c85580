//go:build unix

package backend

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/crypt/keyring/backend/record"
	"palyra/internal/fault"
)

// script makes a program of a shell script, which logs its arguments and environment.
func script(t *testing.T, body string) (path, log string) {
	t.Helper()
	dir := t.TempDir()
	path, log = filepath.Join(dir, "program"), filepath.Join(dir, "log")
	text := "#!/bin/sh\ncd '" + dir + "'\n{ echo \"$@\"; env; } >>log\n" + body
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path, log
}

// keychainProgram is a program that reads lines as security -i does, and has security's statuses.
const keychainProgram = `
case "$1" in
-i)
	read -r line || exit 1
	printf '%s\n' "$line" >>script
	case "$line" in *'"'*) ;; *) exit 2 ;; esac
	eval "set -- $line"
	test ! -e "item-$5" || exit 45
	printf %s "$9" >"item-$5" ;;
find-generic-password) test -e "item-$5" || exit 44; cat "item-$5"; echo ;;
delete-generic-password) test -e "item-$5" || exit 44; rm "item-$5" ;;
esac
`

// TestKeychain holds what security(1) is told to the letter: values on its standard input alone.
func TestKeychain(t *testing.T) {
	ctx := t.Context()
	path, log := script(t, keychainProgram)
	k := security{path}
	const value = "palyra-identity-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	if err := k.write(ctx, "NAME", []byte(value)); err != nil {
		t.Fatal(err)
	}
	wantReason(t, k.write(ctx, "NAME", []byte("other")), "exists")
	if b, err := k.read(ctx, "NAME"); err != nil || string(b) != value {
		t.Errorf("%q, %v", b, err)
	}
	if err := errors.Join(k.remove(ctx, "NAME"), k.remove(ctx, "NAME")); err != nil {
		t.Error(err)
	}
	if _, err := k.read(ctx, "NAME"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its removal: %v", err)
	}
	b, err := os.ReadFile(filepath.Join(filepath.Dir(path), "script"))
	if want := `add-generic-password -s "palyra-vault" -a "NAME" -l "Palyra vault identity" -w "` + value + "\"\n" +
		`add-generic-password -s "palyra-vault" -a "NAME" -l "Palyra vault identity" -w "other"` + "\n"; err != nil || string(b) != want {
		t.Errorf("the lines are\n%swant\n%s%v", b, want, err)
	}
	args, err := os.ReadFile(log)
	if err != nil || strings.Contains(string(args), value[20:]) || strings.Contains(string(args), "other") {
		t.Errorf("arguments or environment have the value: %v", err)
	}
	for _, want := range []string{"-i\n", "find-generic-password -s palyra-vault -a NAME -w\n", "delete-generic-password -s palyra-vault -a NAME\n"} {
		if !strings.Contains(string(args), want) {
			t.Errorf("it isn't called as %q", want)
		}
	}
	for _, bad := range []string{"", `a"b`, "a b", "a\nb", `a\b`, "$(id)", strings.Repeat("a", 1025)} {
		if _, err := k.script("NAME", []byte(bad)); err == nil {
			t.Errorf("%.20q is put into the line", bad)
		}
	}
}

// TestKeychainStatus: each status of security(1) is an error of its own, without what it printed.
func TestKeychainStatus(t *testing.T) {
	for status, reason := range map[string]string{"44": "state_missing", "36": "keyring_unavailable: the keyring is locked", "51": "keyring_unavailable: the keyring is locked", "37": "keyring_unavailable", "1": "keyring_unavailable"} {
		path, _ := script(t, "echo hush; echo hush >&2; exit "+status)
		_, err := security{path}.read(t.Context(), "NAME")
		wantReason(t, err, reason)
		if err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("status %s: %v", status, err)
		}
	}
	_, err := security{"/nonexistent/security"}.read(t.Context(), "NAME")
	wantReason(t, err, "keyring_unavailable")
	if errors.Is(err, fs.ErrNotExist) {
		t.Error("a missing program passes for a missing item")
	}
}

// credsProgram encrypts as little as can be told from not encrypting, for the test of the rest: the
// lab has the real program.
const credsProgram = `
case "$1" in
encrypt) echo sealed; tr A-Za-z0-9 N-ZA-Mn-za-m5-90-4 ;;
decrypt) read -r first; test "$first" = sealed || { echo 'not ours' >&2; exit 1; }; tr N-ZA-Mn-za-m5-90-4 A-Za-z0-9 ;;
esac
`

func TestCreds(t *testing.T) {
	ctx := t.Context()
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	t.Setenv("PALYRA_TEST_HUSH", "environment")
	path, log := script(t, credsProgram)
	c := creds{path}
	name := filepath.Join(t.TempDir(), "store", Credential)
	if err := c.write(ctx, name, []byte("the value")); err != nil {
		t.Fatal(err)
	}
	wantReason(t, c.write(ctx, name, []byte("other")), "exists")
	if b, err := c.read(ctx, name); err != nil || string(b) != "the value" {
		t.Errorf("%q, %v", b, err)
	}
	b, err := os.ReadFile(log)
	if err != nil || strings.Contains(string(b), "value") || strings.Contains(string(b), "HUSH") {
		t.Errorf("arguments or environment: %s, %v", b, err)
	}
	user := ""
	if os.Geteuid() != 0 {
		user = "--user "
	}
	for _, want := range []string{"encrypt --name=palyra-vault " + user + "- -\n", "decrypt --name=palyra-vault " + user + "- -\n"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("it isn't called as %q: %s", want, b)
		}
	}
	if err := os.WriteFile(name, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = c.read(ctx, name)
	wantReason(t, err, "keyring_unavailable")
	if err == nil || !strings.Contains(err.Error(), "not ours") {
		t.Error(err)
	}
	if err := errors.Join(c.remove(ctx, name), c.remove(ctx, name)); err != nil {
		t.Error(err)
	}
	if _, err := c.read(ctx, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after its removal: %v", err)
	}
	_, err = c.read(ctx, Credential)
	wantReason(t, err, "keyring_unavailable")
	for _, lost := range []creds{{}, {"/nonexistent/systemd-creds"}} {
		err := lost.write(ctx, name, []byte("x"))
		wantReason(t, err, "keyring_unavailable")
		if errors.Is(err, fs.ErrNotExist) {
			t.Error("a missing program passes for a missing credential")
		}
	}
	plain, _ := script(t, "cat")
	wantReason(t, creds{plain}.write(ctx, name, []byte("the value")), "bad_answer")
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a value that wasn't encrypted is on the disk")
	}
}

// TestCredsGiven: what the service manager gave is read, and neither written nor removed.
func TestCredsGiven(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	id := newIdentity(t)
	if Given() {
		t.Error("given, without a file")
	}
	if err := os.WriteFile(filepath.Join(dir, Credential), id.Encode(), 0o400); err != nil {
		t.Fatal(err)
	}
	p := CredentialPlace("")
	if !Given() || p.Name != Credential || len(Automatic()) != 1 || Automatic()[0] != record.SystemdCreds {
		t.Error(Given(), p, Automatic())
	}
	c := creds{"/nonexistent/systemd-creds"} // it needs no program
	if b, err := c.read(ctx, p.Name); err != nil || string(b)+"\n" != string(id.Encode()) {
		t.Error(err)
	}
	wantReason(t, c.write(ctx, p.Name, []byte("x")), "read_only")
	if err := errors.Join(c.remove(ctx, p.Name), c.try(ctx)); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, Credential), make([]byte, maxValue+1), 0o400); err == nil { // root may
		_, err := c.read(ctx, p.Name)
		wantReason(t, err, "too_large")
	}
}

// TestProgram: a program that doesn't end is killed with the context, and one that says too much is
// not believed.
func TestProgram(t *testing.T) {
	path, log := script(t, "mkfifo wait 2>/dev/null; echo >started; read x <wait")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := run(ctx, "wait", nil, path)
		done <- err
	}()
	for {
		if _, err := os.Stat(filepath.Join(filepath.Dir(log), "started")); err == nil {
			break
		}
	}
	cancel()
	if err := <-done; fault.KindOf(err) != fault.Canceled {
		t.Error(err)
	}
	path, _ = script(t, "head -c 70000 /dev/zero")
	_, err := run(t.Context(), "read", nil, path)
	wantReason(t, err, "bad_answer")
}

// TestFile: a value is written whole under a name that isn't taken, and is private.
func TestFile(t *testing.T) {
	ctx := t.Context()
	s := files{asking.step}
	name := filepath.Join(t.TempDir(), "new", "key")
	if err := s.write(ctx, name, []byte("value")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]fs.FileMode{name: 0o600, filepath.Dir(name): 0o700} {
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, fi.Mode(), err)
		}
	}
	wantReason(t, s.write(ctx, name, []byte("other")), "exists")
	if b, err := s.read(ctx, name); err != nil || string(b) != "value" {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := s.read(ctx, name)
	wantReason(t, err, "unsafe_file")
	if err := os.Truncate(name, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.read(ctx, name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name that was taken, without a value: %v", err)
	}
	if err := s.remove(ctx, name); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(filepath.Dir(name), "link")
	if err := os.Symlink("elsewhere", link); err != nil {
		t.Fatal(err)
	}
	wantReason(t, s.write(ctx, link, []byte("x")), "exists")
}
