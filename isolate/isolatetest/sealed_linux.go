package isolatetest

import (
	"bytes"
	"os"

	"palyra/isolate/internal/sys"
)

func sealed(b []byte) (*os.File, error) { return sys.SealedFile("isolatetest", bytes.NewReader(b)) }
