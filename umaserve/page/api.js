// The daemon's API: plain requests and WebSockets, with the key where one is needed.

const KEY = "umaserve.key";

/** An answer that is an error. `status` is 0 where there was no answer, `waitS` where it is of no use to wait. */
export class ApiError extends Error {
  constructor(status, message, waitS = 0) {
    super(message);
    Object.assign(this, { status, waitS });
  }
}

/** `storage` keeps the key: the session's, so that it ends with the tab. `refused` is called where a key is missing. */
export function createApi(storage, refused) {
  return {
    get key() {
      return storage.getItem(KEY) ?? undefined;
    },
    set key(value) {
      if (value) storage.setItem(KEY, value);
      else storage.removeItem(KEY);
    },

    /** Fetches `path`; returns the response, whatever its status. Throws `ApiError` without one. */
    async request(path, options = {}) {
      const headers = { ...options.headers };
      if (this.key) headers.Authorization = `Bearer ${this.key}`;
      let response;
      try {
        response = await fetch(path, { ...options, headers });
      } catch {
        throw new ApiError(0, "The server can't be reached.");
      }
      if (response.status === 401) refused();
      return response;
    },

    /** As `request`, but an answer that is an error is thrown. */
    async fetch(path, options) {
      const response = await this.request(path, options);
      if (response.ok) return response;
      const error = (await response.json().catch(() => ({}))).error;
      const message = error?.message ?? `The server answers with status ${response.status}.`;
      throw new ApiError(response.status, message, Number(response.headers.get("Retry-After")));
    },

    async json(path) {
      return (await this.fetch(path)).json();
    },

    /** With the key in the handshake, after `prefix`: large messages are for those who have shown one. */
    socket(path, [name, prefix] = ["umaserve", "bearer."]) {
      const url = new URL(path, location.href);
      url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
      return new WebSocket(url, this.key ? [name, `${prefix}${this.key}`] : []);
    },

    refused,
  };
}
