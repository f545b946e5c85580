//go:build !linux

package httpapi

import (
	"net"

	"palyra/internal/fault"
)

// peerCredentials is for Linux. Elsewhere nobody on a unix socket is known, and
// a token is needed there too.
func peerCredentials(net.Conn) (uid uint32, pid int32, err error) {
	return 0, 0, fault.New(fault.Unsupported, "peer_credentials_unsupported", "read peer credentials", nil)
}
