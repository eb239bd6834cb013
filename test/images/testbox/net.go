package main

import (
	"fmt"
	"io"
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
	mux.HandleFunc("POST /exit", func(_ http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.FormValue("code"))
		os.Exit(code)
	})
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	fmt.Println("serving on", l.Addr())
	return http.Serve(l, mux)
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

func dial(a []string) error {
	c, err := net.DialTimeout("tcp", arg(a, 0, ""), 10*time.Second)
	if err != nil {
		return err
	}
	fmt.Println("connected from", c.LocalAddr())
	return c.Close()
}

func tcp(a []string) error {
	l, err := net.Listen("tcp", ":"+arg(a, 0, "8080"))
	if err != nil {
		return err
	}
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
