package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"berth/control/ui"
)

// uiTimeout limits the request for a link.
const uiTimeout = 30 * time.Second

func uiCommand() *cobra.Command {
	var o clientOptions
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Print a link to the web page of the server",
		Long: `Print a link that signs you in to the web page of the server, as the user of the kubeconfig, which must
contain a client certificate. The link is valid for ` + ui.LinkLifetime.String() + ` and can be used once.

The browser has to trust the certificate authority of the server, which is in the kubeconfig. If it does not, use
"kubectl proxy" and open http://127.0.0.1:8001/ui/ instead.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, config, err := o.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), uiTimeout)
			defer cancel()
			link, err := requestLink(ctx, config, duration)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), link)
			return err
		},
	}
	o.flags(cmd)
	cmd.Flags().DurationVar(&duration, "duration", 8*time.Hour,
		"duration of the session, at most "+ui.MaxSession.String()+" and until the client certificate expires")
	return cmd
}

// requestLink requests a link from the server.
func requestLink(ctx context.Context, config *restclient.Config, duration time.Duration) (string, error) {
	if i := config.Impersonate; i.UserName != "" || i.UID != "" || len(i.Groups) > 0 || len(i.Extra) > 0 {
		return "", errors.New(
			"a link is for the user of the client certificate: the kubeconfig impersonates another user")
	}
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		return "", fmt.Errorf("client: %w", err)
	}
	base, _, err := restclient.DefaultServerUrlFor(config)
	if err != nil {
		return "", fmt.Errorf("server: %w", err)
	}
	body, err := json.Marshal(ui.LinkRequest{Duration: metav1.Duration{Duration: duration}})
	if err != nil {
		return "", err
	}
	page := base.JoinPath(ui.Prefix)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, page.JoinPath("links").String(), bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set(ui.Header, "berth-control")
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", linkError(resp)
	}
	var out ui.LinkResponse
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return "", fmt.Errorf("response of the server: %w", err)
	}
	page.Fragment = "/link/" + out.Code // browsers do not send it, so no log contains it
	return page.String(), nil
}

// linkError returns the error of a response.
func linkError(resp *http.Response) error {
	var status metav1.Status
	err := json.NewDecoder(resp.Body).Decode(&status)
	// Without the page, a user needs a permission for the path to learn that it does not exist.
	if resp.StatusCode == http.StatusNotFound ||
		resp.StatusCode == http.StatusForbidden && strings.Contains(status.Message, ui.Prefix+"links") {
		return errors.New("the server does not serve the web page: was it started with --ui=false?")
	}
	if err != nil || status.Message == "" {
		return fmt.Errorf("response of the server: %s", resp.Status)
	}
	return &apierrors.StatusError{ErrStatus: status}
}
