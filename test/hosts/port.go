package hosts

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// FreePort returns an unused port of 127.0.0.1 below the range that the kernel uses for outgoing
// connections, which could otherwise take it at any moment.
func FreePort() (int, error) {
	const low, high, tries = 10000, 30000, 100
	var last error
	for range tries {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", low+rand.IntN(high-low)))
		if err != nil {
			last = err // the port is in use
			continue
		}
		at, ok := l.Addr().(*net.TCPAddr)
		if err := l.Close(); err != nil || !ok {
			return 0, errors.Join(err, fmt.Errorf("listen on %s", l.Addr()))
		}
		return at.Port, nil
	}
	return 0, fmt.Errorf("no free port in %d tries: %w", tries, last)
}
