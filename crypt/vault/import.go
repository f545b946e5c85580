package vault

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"

	"palyra/internal/fault"
)

// OpenExport decrypts what Export made, with the content of a file of age identities, up to most
// bytes. The caller wipes the result.
func OpenExport(file io.Reader, identities string, most int) ([]byte, error) {
	const op = "open export"
	ids, err := age.ParseIdentities(strings.NewReader(identities))
	if err != nil { // the cause may hold a part of the key
		return nil, fault.New(fault.Usage, "bad_file", op, errors.New("the identity is no file of age identities"))
	}
	plain, err := age.Decrypt(file, ids...)
	if _, other := errors.AsType[*age.NoIdentityMatchError](err); other {
		return nil, fault.New(fault.Denied, "keys_locked", op, errors.New("it is encrypted for another identity"))
	}
	if err != nil {
		return nil, fault.New(fault.Usage, "bad_file", op, errors.New("age can't read it"))
	}
	b := bytes.NewBuffer(make([]byte, 0, most+bytes.MinRead)) // never grows: a grown one would leave a copy
	n, err := io.Copy(b, io.LimitReader(plain, int64(most)+1))
	switch {
	case err != nil:
		err = fault.New(fault.Usage, "bad_file", op, errors.New("it is cut or changed"))
	case n > int64(most):
		err = fault.New(fault.Usage, "too_large", op, fmt.Errorf("more than %d bytes", most))
	}
	if err != nil {
		clear(b.Bytes())
		return nil, err
	}
	return b.Bytes(), nil
}
