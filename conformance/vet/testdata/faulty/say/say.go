// Package say has a function that formats as Printf does.
package say

import "fmt"

func Sayf(format string, args ...any) { fmt.Printf(format, args...) }
