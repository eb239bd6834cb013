package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"berth/control/pki"
	"berth/control/serviceips"
	"berth/control/tokens"
)

func tokenCommand() *cobra.Command {
	r := &clientOptions{}
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and delete bootstrap tokens for joining nodes",
		Long: `Create, list and delete bootstrap tokens for joining nodes. They are Secrets of type
bootstrap.kubernetes.io/token in namespace kube-system, the standard Kubernetes form, so kubectl shows them too.`,
	}
	r.flags(cmd)
	cmd.AddCommand(tokenCreate(r), tokenList(r), tokenDelete(r))
	return cmd
}

// tokenOptions holds the flags of token create.
type tokenOptions struct {
	server, description, forNode string
	ttl                          time.Duration
	reusable                     bool
}

func tokenCreate(r *clientOptions) *cobra.Command {
	w := tokenOptions{}
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a token and print the command to join a node",
		Long: `Create a token and print the command to run on the joining host. The hash in the command pins the
certificate authority of this server: the host connects to no other server. A token is valid for one node, until it
expires.

A token cannot take the name of an existing node, except with --for: it lets the host that joins with it be that node,
for example after a reinstallation or with a new machine. Another host that is running under this name is not
replaced.`,
		Example: `  berth-control token create
  berth-control token create --server https://control.example.com:6443 --ttl 10m
  berth-control token create --for rack7`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, config, err := r.client()
			if err != nil {
				return err
			}
			return w.create(cmd.Context(), client, config, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&w.server, "server", "", "URL by which the node reaches the server (default: an address of this host)")
	f.DurationVar(&w.ttl, "ttl", time.Hour, "time after which the token expires; 0 means that it never expires")
	addFormerFlag(f, "valid", "ttl")
	f.BoolVar(&w.reusable, "reusable", false, "allow any number of nodes to join with the token until it expires")
	f.StringVar(&w.forNode, "for", "", "`node` that the token is for; the node may exist already")
	f.StringVar(&w.description, "description", "", "description of the token, for token list")
	return cmd
}

func (w *tokenOptions) create(
	ctx context.Context,
	client kubernetes.Interface,
	config *restclient.Config,
	out, warn io.Writer,
) error {
	switch {
	case w.ttl < 0:
		return errors.New("ttl: must not be negative")
	case w.forNode != "" && w.reusable:
		return errors.New("for: cannot be combined with --reusable")
	}
	if problems := validation.IsDNS1123Subdomain(w.forNode); w.forNode != "" && len(problems) > 0 {
		return fmt.Errorf("for: %q is not a node name: %s", w.forNode, problems[0])
	}
	if len(config.CAData) == 0 {
		return errors.New("kubeconfig: contains no certificate-authority-data to pin")
	}
	hash, err := pki.Hash(config.CAData)
	if err != nil {
		return fmt.Errorf("kubeconfig: certificate-authority-data: %w", err)
	}
	server, err := serverURL(ctx, w.server, config.Host)
	if err != nil {
		return err
	}
	token, err := tokens.NewBootstrapToken()
	if err != nil {
		return err
	}
	token.Description, token.SingleUse, token.ForNode = w.description, !w.reusable, w.forNode
	if w.ttl > 0 {
		token.Expires = time.Now().Add(w.ttl)
	}
	if _, err := client.CoreV1().Secrets(tokens.BootstrapNamespace).Create(ctx, token.ToSecret(),
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("store the token: %w", err)
	}
	timeout := acceptTimeout
	if w.ttl > 0 {
		timeout = min(timeout, w.ttl)
	}
	if err := waitUntilAccepted(ctx, client, token.Token(), timeout); err != nil {
		_, _ = fmt.Fprintln(warn, "berth-control:", err)
	}
	if host, err := url.Parse(server); err == nil && net.ParseIP(host.Hostname()).IsLoopback() {
		_, _ = fmt.Fprintf(warn, "berth-control: %s is reachable from this host only; use --server for other hosts\n",
			server)
	}
	_, err = fmt.Fprintf(out, "berth join --server %s --token %s --discovery-token-ca-cert-hash %s\n", server,
		token.Token(), hash)
	return err
}

const (
	acceptPollPeriod = 50 * time.Millisecond
	acceptTimeout    = 30 * time.Second
)

// waitUntilAccepted waits until the server accepts a new token. It looks tokens up in a cache.
func waitUntilAccepted(ctx context.Context, client kubernetes.Interface, token string, timeout time.Duration) error {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	err := wait.PollUntilContextTimeout(ctx, acceptPollPeriod, timeout, true,
		func(ctx context.Context) (bool, error) {
			got, err := client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
			return err == nil && got.Status.Authenticated, err
		})
	if err != nil {
		return fmt.Errorf("the token is stored, but the server may not accept it yet: %w", err)
	}
	return nil
}

// serverURL returns the URL by which a node reaches the server: the given one, else the server of
// the kubeconfig if it is not a loopback address, else the first global unicast address of this
// host that accepts connections on the port.
func serverURL(ctx context.Context, given, own string) (string, error) {
	if given != "" {
		u, err := url.Parse(given)
		if err != nil || u.Scheme != "https" || u.Host == "" {
			return "", fmt.Errorf("server: %q must be https://HOST:PORT", given)
		}
		return given, nil
	}
	u, err := url.Parse(own)
	if err != nil {
		return "", fmt.Errorf("kubeconfig: server: %w", err)
	}
	if ip := net.ParseIP(u.Hostname()); ip == nil || !ip.IsLoopback() {
		return own, nil
	}
	for _, a := range serviceips.HostAddresses() {
		if at := net.JoinHostPort(a.String(), u.Port()); listening(ctx, at) {
			return "https://" + at, nil
		}
	}
	return own, nil
}

// listening reports whether the address accepts TCP connections.
func listening(ctx context.Context, address string) bool {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

func tokenList(r *clientOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the tokens, without their secrets",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, _, err := r.client()
			if err != nil {
				return err
			}
			list, err := client.CoreV1().
				Secrets(tokens.BootstrapNamespace).
				List(cmd.Context(),
					metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)})
			if err != nil {
				return fmt.Errorf("list tokens: %w", err)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "ID\tEXPIRES\tNODES\tUSED BY\tDESCRIPTION")
			for _, s := range list.Items {
				expires, nodes, by := string(s.Data["expiration"]), "any", s.Annotations[tokens.ClaimedByAnnotation]
				if expires == "" {
					expires = "never"
				}
				if s.Annotations[tokens.SingleUseAnnotation] == "true" {
					nodes = "one"
				}
				if name := s.Annotations[tokens.ForNodeKey]; name != "" {
					nodes = name
				}
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Data["token-id"], expires, nodes, by,
					s.Data["description"])
			}
			return w.Flush() // Flush also returns earlier write errors.
		},
	}
}

func tokenDelete(r *clientOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "delete ID",
		Short: "Delete a token; nodes that joined with it are not affected",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, _, err := r.client()
			if err != nil {
				return err
			}
			id := args[0]
			if whole, _, ok := tokens.ParseBootstrapToken(id); ok {
				id = whole
			}
			if err := client.CoreV1().Secrets(tokens.BootstrapNamespace).Delete(cmd.Context(),
				tokens.BootstrapNamePrefix+id,
				metav1.DeleteOptions{}); err != nil {
				return fmt.Errorf("delete token %s: %w", id, err)
			}
			return nil
		},
	}
}
