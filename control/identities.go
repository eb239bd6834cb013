package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"berth/control/controllers"
)

// identities authenticates the controllers and the scheduler of this server. Each has the user name that it has in
// upstream's control plane, so that the default roles limit it and audit logs name it. The tokens are random and
// valid until the server stops. It is safe for concurrent use.
type identities struct {
	mu    sync.Mutex
	users map[string]user.Info // by token
}

// AuthenticateToken returns the user of a token.
func (i *identities) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	u, found := i.users[token]
	if !found {
		return nil, false, nil
	}
	return &authenticator.Response{User: u}, true, nil
}

// tokenFor returns a new token of a user.
func (i *identities) tokenFor(u user.Info) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.users == nil {
		i.users = map[string]user.Info{}
	}
	token := uuid.NewString()
	i.users[token] = u
	return token
}

// forget invalidates a token.
func (i *identities) forget(token string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.users, token)
}

// identity is a connection to this server as one user.
type identity struct {
	config *restclient.Config
	client kubernetes.Interface
	// release invalidates the credentials.
	release func()
}

// permissionTimeout is how long a new identity waits for the authorizer to observe its roles. An administrator may
// have taken them away.
const permissionTimeout = 10 * time.Second

// identityOf returns a connection to this server as the given user. It waits until the default roles exist and the
// authorizer has observed those of the user: they let each controller record events.
func (a *Assembly) identityOf(ctx context.Context, u user.Info) (*identity, error) {
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for default roles: %w", ctx.Err())
	case <-a.access.policyStored:
	}
	_ = wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, permissionTimeout, true,
		func(ctx context.Context) (bool, error) {
			decision, _, err := a.access.authorizer.Authorize(ctx, authorizer.AttributesRecord{
				User: u, Verb: "create", Namespace: metav1.NamespaceDefault, APIVersion: "v1", Resource: "events",
				ResourceRequest: true,
			})
			return err == nil && decision == authorizer.DecisionAllow, nil
		})
	config := restclient.CopyConfig(a.Loopback)
	config.BearerToken = a.access.identities.tokenFor(u)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		a.access.identities.forget(config.BearerToken)
		return nil, fmt.Errorf("client of %s: %w", u.GetName(), err)
	}
	return &identity{config, client, func() { a.access.identities.forget(config.BearerToken) }}, nil
}

// controllerUser returns the user of a controller: its service account in upstream's control plane.
func controllerUser(name string) user.Info {
	account := controllers.ServiceAccount(name)
	if account == "" {
		return &user.DefaultInfo{Name: user.KubeControllerManager}
	}
	return serviceaccount.UserInfo(metav1.NamespaceSystem, account, "")
}
