package hub

import (
	"context"
	"time"
)

// ConsoleCode lets one browser in, once, as the caller who asked for it.
type ConsoleCode struct {
	URL     string    `json:"url"` // that the browser opens; it has the code
	Code    string    `json:"code"`
	Expires time.Time `json:"expires"` // a minute from now
}

// OpenConsole is for members at the unix socket, whom the kernel names. Another code of the same
// caller's ends the one before.
var OpenConsole = define[None, ConsoleCode]("console.openConsole", "POST /console", "token.manage",
	"Let one browser into the console", Operation{Doc: "For callers at the unix socket alone. The code is good for a minute and one browser, which gets " +
		"a token of the caller's for it.", Effect: Keeps})

// ConsoleToken is the name of a browser's token, which is good in the console alone. No other token
// can have it.
const ConsoleToken = "console"

// SurfaceConsole is the surface of a browser that came through the door.
const SurfaceConsole = "console"

// Door lets browsers into the console, by codes and by passkeys. Codes are those of OpenConsole. A
// browser shows a nonce, its secret, and has the user of this machine whose connection it came by,
// "" if that is another machine's.
type Door interface {
	// Knock binds a code to a browser. A code that another browser was first with, another user's, and
	// one that isn't good are fault.Denied "unauthenticated".
	Knock(code, nonce, user string) error
	// Enter spends a code, which its browser has knocked with, for a token with the rights of the
	// caller whose code it was.
	Enter(ctx context.Context, code, nonce, user string) (TokenSecret, error)
	PasskeyDoor
}
