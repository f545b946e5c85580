package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"

	"palyra/internal/fault"
)

// security keeps a value as a generic password of the user's default keychain, by security(1). The
// program is the item's only trusted one, so each program of the user can ask it in the same way.
//
// A value goes to the program in a line on standard input (security -i) and never in its arguments,
// which other users can see. Names are ours: letters, digits and "-".
type security struct{ program string }

// keychainService is the service of our items.
const keychainService = "palyra-vault"

// The statuses of security(1) are the last eight bits of an OSStatus.
const (
	errSecItemNotFound          = 44 // -25300
	errSecDuplicateItem         = 45 // -25299
	errSecInteractionNotAllowed = 36 // -25308: locked, and there is no one to ask
	errSecAuthFailed            = 51 // -25293
	errSecNoDefaultKeychain     = 37 // -25307
)

// script is the line with which a value is added. security -i splits it at blanks outside of
// quotes, and reads at most 4096 bytes.
func (security) script(name string, value []byte) ([]byte, error) {
	plain := func(s string) bool {
		return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("+/=:-", r)
		})
	}
	if !plain(name) || !plain(string(value)) || len(value) > 1024 {
		return nil, errors.New("a name or value that the line can't hold")
	}
	b := fmt.Appendf(nil, `add-generic-password -s "%s" -a "%s" -l "Palyra vault identity" -w "`, keychainService, name)
	b = append(b, value...)
	return append(b, "\"\n"...), nil
}

func (k security) write(ctx context.Context, name string, value []byte) error {
	op := fmt.Sprintf("add item %q to the keychain", name)
	line, err := k.script(name, value)
	if err != nil {
		return fault.New(fault.Usage, "invalid_input", op, err)
	}
	defer clear(line)
	_, err = run(ctx, op, line, k.program, "-i")
	return k.fault(op, err)
}

func (k security) read(ctx context.Context, name string) ([]byte, error) {
	op := fmt.Sprintf("read item %q of the keychain", name)
	b, err := run(ctx, op, nil, k.program, "find-generic-password", "-s", keychainService, "-a", name, "-w")
	if err != nil {
		return nil, k.fault(op, err)
	}
	return trimLine(b), nil
}

func (k security) remove(ctx context.Context, name string) error {
	op := fmt.Sprintf("remove item %q of the keychain", name)
	_, err := run(ctx, op, nil, k.program, "delete-generic-password", "-s", keychainService, "-a", name)
	if err = k.fault(op, err); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// fault says what a status means. What the program said isn't in it: of a line that it doesn't
// understand it may repeat a part.
func (security) fault(op string, err error) error {
	e, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		if _, known := errors.AsType[*fault.Error](err); err == nil || known {
			return err
		}
		return absent(op, errors.New("security can't be started"), "it is /usr/bin/security of macOS")
	}
	switch e.ExitCode() {
	case errSecItemNotFound:
		return fault.Mark(fault.New(fault.BadState, "state_missing", op, errors.New("there is none")), fs.ErrNotExist)
	case errSecDuplicateItem:
		return fault.New(fault.BadState, "exists", op, errors.New("one is there already"))
	case errSecInteractionNotAllowed, errSecAuthFailed:
		return locked(op, "security unlock-keychain")
	case errSecNoDefaultKeychain:
		return absent(op, errors.New("there is no default keychain"), "security default-keychain")
	}
	return absent(op, fmt.Errorf("security ended with status %d", e.ExitCode()), "security error, with a status before it was cut to 8 bits, explains it")
}

// locked is a keyring that a person must unlock.
func locked(op, how string) error {
	return fault.New(fault.Unavailable, "keyring_unavailable", op, errors.New("the keyring is locked")).WithHint("unlock it and try again: " + how)
}
