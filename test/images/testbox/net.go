package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

func serve(a []string) error {
	port := os.Getenv("PORT")
	if len(a) > 0 {
		port = a[0]
	}
	if port == "" {
		port = "8080"
	}
	var health atomic.Int64
	health.Store(http.StatusOK)
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		h, _ := os.Hostname()
		fmt.Fprintln(w, h)
	})
	mux.HandleFunc("GET /env", func(w http.ResponseWriter, _ *http.Request) {
		vars := os.Environ()
		slices.Sort(vars)
		fmt.Fprintln(w, strings.Join(vars, "\n"))
	})
	mux.HandleFunc("GET /env/{name}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, os.Getenv(r.PathValue("name")))
	})
	mux.HandleFunc("GET /headers", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, r.Host)
		_ = r.Header.Write(w)
	})
	mux.HandleFunc("GET /peer", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(w, host)
	})
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(r.FormValue("name"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(data)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(int(health.Load()))
		fmt.Fprintln(w, "health", health.Load())
	})
	mux.HandleFunc("POST /healthz", func(_ http.ResponseWriter, r *http.Request) {
		health.Store(number(r.FormValue("code")))
	})
	mux.HandleFunc("GET /delay", func(w http.ResponseWriter, r *http.Request) {
		d, _ := time.ParseDuration(r.FormValue("d"))
		time.Sleep(d)
		fmt.Fprintln(w, "slept", d)
	})
	mux.HandleFunc("GET /redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.FormValue("to"), http.StatusFound)
	})
	mux.HandleFunc("POST /exit", func(_ http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.FormValue("code"))
		os.Exit(code)
	})
	mux.HandleFunc("POST /deny", denyAdmission)
	served := make(chan error, 1)
	if tlsPort := arg(a, 1, ""); tlsPort != "" {
		go func() { served <- serveTLS(tlsPort, mux) }()
	}
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	fmt.Println("serving on", l.Addr())
	go func() { served <- http.Serve(l, mux) }()
	return <-served
}

// denyAdmission is an admission webhook that denies all requests. Its message names the host.
func denyAdmission(w http.ResponseWriter, r *http.Request) {
	var review struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Request    struct {
			UID string `json:"uid"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	host, _ := os.Hostname()
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": review.APIVersion, "kind": review.Kind,
		"response": map[string]any{"uid": review.Request.UID, "allowed": false,
			"status": map[string]any{"message": "denied by " + host}}})
}

// serveTLS serves with the certificate in $TLS_CERT and $TLS_KEY, or with a self-signed one.
func serveTLS(port string, h http.Handler) error {
	serving, err := tls.X509KeyPair([]byte(os.Getenv("TLS_CERT")), []byte(os.Getenv("TLS_KEY")))
	if err != nil {
		if serving, err = selfSigned(); err != nil {
			return err
		}
	}
	l, err := tls.Listen("tcp", ":"+port,
		&tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{serving}})
	if err != nil {
		return err
	}
	fmt.Println("serving TLS on", l.Addr())
	return http.Serve(l, h)
}

// selfSigned returns a certificate for a name that no test uses.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	c := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), DNSNames: []string{"testbox.invalid"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func get(a []string) error {
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(arg(a, 0, ""))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// lookup prints the addresses of a name.
func lookup(a []string) error {
	addresses, err := net.LookupHost(arg(a, 0, ""))
	fmt.Println(strings.Join(addresses, "\n"))
	return err
}

// server sends a request to the API server as pods do: with the address from the environment and the service
// account's token and CA certificate.
func server(a []string) error {
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	url := "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")) +
		arg(a, 0, "/version")
	req, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if strings.HasSuffix(url, "reviews") {
		req, err = http.NewRequest(http.MethodPost, url,
			strings.NewReader(`{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`))
	}
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+string(token))
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: 10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode)
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

func dial(a []string) error {
	c, err := net.DialTimeout("tcp", arg(a, 0, ""), 10*time.Second)
	if err != nil {
		return err
	}
	fmt.Println("connected from", c.LocalAddr())
	return c.Close()
}

func tcp(a []string) error {
	if file := arg(a, 1, ""); file != "" {
		return tcpWhile(a[0], file)
	}
	l, err := net.Listen("tcp", ":"+arg(a, 0, "8080"))
	if err != nil {
		return err
	}
	return echo(l)
}

// tcpWhile listens whenever a file exists.
func tcpWhile(port, file string) error {
	for {
		if err := await([]string{file}); err != nil {
			return err
		}
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		go func() { _ = echo(l) }()
		for {
			if _, err := os.Stat(file); err != nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		_ = l.Close()
	}
}

// serveGRPC responds to every call of the gRPC health protocol with one message, whose field 1 is the status.
func serveGRPC(a []string) error {
	s := &http.Server{Protocols: new(http.Protocols),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			status := byte(1) // SERVING
			if file := arg(a, 1, ""); file != "" {
				if _, err := os.Stat(file); err != nil {
					status = 2 // NOT_SERVING
				}
			}
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, status})
			w.Header().Set("Grpc-Status", "0")
		})}
	s.Protocols.SetUnencryptedHTTP2(true)
	l, err := net.Listen("tcp", ":"+arg(a, 0, "8080"))
	if err != nil {
		return err
	}
	fmt.Println("serving on", l.Addr())
	return s.Serve(l)
}

func echo(l net.Listener) error {
	fmt.Println("listening on", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

func udp(a []string) error {
	c, err := net.ListenPacket("udp", ":"+arg(a, 0, "8080"))
	if err != nil {
		return err
	}
	fmt.Println("listening on", c.LocalAddr())
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		if _, err := c.WriteTo(buf[:n], from); err != nil {
			return err
		}
	}
}
