package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type peerKey struct{}

// peer is the user of the other end of a connection, as reported by the kernel.
type peer struct {
	uid uint32
	err error
}

// withPeer adds the peer of a new connection to its context.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	uid, err := peerUID(c)
	return context.WithValue(ctx, peerKey{}, peer{uid: uid, err: err})
}

func peerUID(c net.Conn) (uint32, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("a connection of type %T has no peer credentials", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return cred.Uid, nil
}

// authorizePeer allows requests of root and of the owner only.
func (s *server) authorizePeer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := r.Context().Value(peerKey{}).(peer)
		switch {
		case !ok || p.err != nil:
			writeError(w, apierrors.NewUnauthorized("peer credentials of the socket connection are unknown"))
		case p.uid != 0 && p.uid != s.owner:
			writeError(w, apierrors.NewForbidden(schema.GroupResource{}, "",
				errors.New("only root can use this socket")))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func ownUID() uint32 { return uint32(os.Geteuid()) }
