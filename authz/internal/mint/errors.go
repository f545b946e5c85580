package mint

import "errors"

var errLength = errors.New("grant: wrong length")
