package tokens

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/utils/lru"
)

// Limits of failed attempts to authenticate with a bootstrap token, for each client address.
const (
	attemptBurst    = 20
	attemptInterval = time.Second // an attempt more after this time
	// attemptAddresses limits the memory. The addresses with the oldest attempts are forgotten.
	attemptAddresses = 4096
	// ipv6Bits is the part of an IPv6 address that counts, because a host usually has all addresses of its network.
	ipv6Bits = 64
)

// attemptBudget is what an address has left of its burst at a time.
type attemptBudget struct {
	left float64
	at   time.Time
}

// refilled returns the budget at a later time.
func (b attemptBudget) refilled(now time.Time) attemptBudget {
	passed := max(0, now.Sub(b.at))
	return attemptBudget{min(attemptBurst, b.left+float64(passed)/float64(attemptInterval)), now}
}

// wait returns how long the address must wait for an attempt. 0: it may try now.
func (b attemptBudget) wait() time.Duration {
	return time.Duration(max(0, 1-b.left) * float64(attemptInterval))
}

// Attempts limits failed attempts to authenticate with a bootstrap token. Successful ones do not count. It is safe
// for concurrent use.
type Attempts struct {
	mu      sync.Mutex
	now     func() time.Time
	budgets *lru.Cache // of attemptBudget, by netip.Prefix. Missing: a full one.
}

// NewAttempts returns a limiter. A nil clock means time.Now.
func NewAttempts(now func() time.Time) *Attempts {
	return &Attempts{now: func() time.Time { return nowOf(now) }, budgets: lru.New(attemptAddresses)}
}

// change adds to the budget of an address if it allows an attempt. It returns the wait before the next attempt.
func (a *Attempts) change(address netip.Prefix, by float64) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	budget := attemptBudget{attemptBurst, now}
	stored, _ := a.budgets.Get(address)
	if known, ok := stored.(attemptBudget); ok {
		budget = known.refilled(now)
	}
	wait := budget.wait()
	if wait > 0 && by < 0 {
		return wait
	}
	budget.left = min(attemptBurst, budget.left+by)
	if by != 0 {
		a.budgets.Add(address, budget)
	}
	return wait
}

type clientAddressKey struct{}

// Handler passes the address of the client to Limit. It rejects requests with a bootstrap token from an address that
// has too many failed attempts, so that a client can distinguish this from an invalid token.
func (a *Attempts) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address, ok := clientAddress(r.RemoteAddr)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if _, _, isBootstrap := ParseBootstrapToken(bearerToken(r)); isBootstrap {
			if wait := a.change(address, 0); wait > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
				http.Error(w, errTooManyAttempts.Error(), http.StatusTooManyRequests)
				return
			}
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), clientAddressKey{}, address)))
	})
}

// bearerToken returns the token in the header of a request.
func bearerToken(r *http.Request) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// clientAddress returns the part of a host and port that identifies the client.
func clientAddress(hostPort string) (netip.Prefix, bool) {
	at, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return netip.Prefix{}, false
	}
	ip := at.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = ipv6Bits
	}
	address, err := ip.Prefix(bits)
	return address, err == nil
}

var errTooManyAttempts = errors.New("too many failed attempts with bootstrap tokens from this address, try again later")

// Limit returns an authenticator that does not look at bootstrap tokens from an address with too many failed
// attempts. An attempt is counted before it is checked, so that parallel requests cannot exceed the limit.
func (a *Attempts) Limit(next authenticator.Token) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		address, known := ctx.Value(clientAddressKey{}).(netip.Prefix)
		if _, _, isBootstrap := ParseBootstrapToken(token); !isBootstrap || !known {
			return next.AuthenticateToken(ctx, token)
		}
		if a.change(address, -1) > 0 {
			return nil, false, errTooManyAttempts
		}
		response, ok, err := next.AuthenticateToken(ctx, token)
		if ok || err != nil {
			a.change(address, 1) // the token is valid, or this is unknown
		}
		return response, ok, err
	})
}

// Unlimited returns an authenticator for reviews: their requesters are authenticated and authorized, so that Limit does
// not apply.
func Unlimited(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		return next.AuthenticateRequest(r.WithContext(context.WithValue(r.Context(), clientAddressKey{}, nil)))
	})
}
