package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/windows"

	"palyra/internal/fault"
)

// protected keeps a value in a file that the Data Protection API encrypts under the user's login.
// The file itself needs no protection. Programs of the same user can have it decrypted.
type protected struct{}

func dpapi() (store, error) { return protected{}, nil }

// purpose is what DPAPI calls entropy: a value that must be given again. It isn't secret.
const purpose = "palyra/vault-identity/1"

func blob(b []byte) *windows.DataBlob {
	return &windows.DataBlob{Size: uint32(len(b)), Data: unsafe.SliceData(b)}
}

// taken copies what an API function allocated, wipes it and gives it back (LocalFree). The memory
// is the system's and valid until then; Size is its length.
func taken(out windows.DataBlob) []byte {
	if out.Data == nil {
		return nil
	}
	b := unsafe.Slice(out.Data, out.Size)
	value := append([]byte(nil), b...)
	clear(b)
	_, _ = windows.LocalFree(windows.Handle(unsafe.Pointer(out.Data)))
	return value
}

func (protected) write(_ context.Context, name string, value []byte) error {
	op := fmt.Sprintf("write identity %q", name)
	var out windows.DataBlob
	if err := windows.CryptProtectData(blob(value), nil, blob([]byte(purpose)), 0, nil, windows.CRYPTPROTECT_UI_FORBIDDEN, &out); err != nil {
		return absent(op, fmt.Errorf("CryptProtectData: %w", err), "is the user's profile loaded?")
	}
	sealed := taken(out)
	err := os.MkdirAll(filepath.Dir(name), 0o700)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if errors.Is(err, fs.ErrExist) {
		return fault.New(fault.BadState, "exists", op, errors.New("the file is there already")).WithHint("move it away, or name another")
	}
	if err == nil {
		_, err = f.Write(sealed)
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			_ = os.Remove(name)
		}
	}
	if err != nil {
		return fault.New(fault.BadState, "state_io", op, err)
	}
	return nil
}

func (protected) read(_ context.Context, name string) ([]byte, error) {
	op := fmt.Sprintf("read identity %q", name)
	sealed, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.Mark(fault.New(fault.BadState, "state_missing", op, errors.New("there is none")), fs.ErrNotExist)
	case err != nil:
		return nil, fault.New(fault.BadState, "state_io", op, err)
	case len(sealed) == 0 || len(sealed) > maxOutput:
		return nil, fault.New(fault.Integrity, "key_corrupt", op, errors.New("it isn't what was written"))
	}
	var out windows.DataBlob
	if err := windows.CryptUnprotectData(blob(sealed), nil, blob([]byte(purpose)), 0, nil, windows.CRYPTPROTECT_UI_FORBIDDEN, &out); err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, fmt.Errorf("CryptUnprotectData: %w", err)).
			WithHint("only the user who wrote it can read it, on that host")
	}
	return taken(out), nil
}

func (protected) remove(_ context.Context, name string) error {
	err := os.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fault.New(fault.BadState, "state_io", fmt.Sprintf("remove identity %q", name), err)
}
